"""Anything at all on the request surface and in the record decoder: an answer or an error of ours, never a crash.

Short in the default run; ``CAISSON_FUZZ_SECONDS=60`` (the form of CI) goes on for as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import Kind, Record, RecordError, Tag, decode, encode, strip_ring
from caisson_runner.witness import WitnessLost
from caisson_runner.witness.ebpf import Journal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tracerd_rig import NOBODY

if TYPE_CHECKING:
    from tracerd_rig import Client, Daemon

pytestmark = [pytest.mark.fuzz]
SECONDS = float(os.environ.get("CAISSON_FUZZ_SECONDS", "0"))
"""For each of the two surfaces, half of it."""
CALM = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much)


def for_a_while(check: Callable[[], None]) -> None:
    """Once, or again and again with new examples until the time is over."""
    end = time.monotonic() + SECONDS / 2
    check()
    while time.monotonic() < end:
        check()


def fuzzing(examples: int) -> Any:
    phases = [Phase.generate, Phase.shrink]
    return settings(
        max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=list(CALM)
    )


whole = st.builds(
    Record,
    kind=st.sampled_from([Kind.FORK, Kind.EXEC, Kind.EXIT, Kind.OPEN, Kind.CONNECT]),  # those without an operation
    seq=st.integers(1, 2**64 - 1),  # 0 is: take the position
    pid=st.integers(0, 2**32 - 1),
    error=st.integers(0, 4095),
    comm=st.binary(max_size=15).map(lambda name: name.replace(b"\0", b"")),
    given=st.none() | st.binary(max_size=300).map(lambda path: path.replace(b"\0", b"x")),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Real records with some bytes of them replaced, repeated, or cut off; or nothing real at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=2000))
    data = bytearray(b"".join(map(encode, draw(st.lists(whole, min_size=1, max_size=4)))))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.sampled_from([0, 1, 2, 4, 8]))
        data[at : at + size] = draw(
            st.binary(max_size=8) | st.sampled_from([b"\xff" * 4, b"\0" * 8, b"\x01\0\0\x80", bytes([*Tag][:1])])
        )
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


def test_the_decoder_answers_or_refuses_whatever_it_is_given() -> None:
    @fuzzing(250)
    @given(damaged())
    def check(data: bytes) -> None:
        try:
            for record in decode(data):
                assert encode(record)
        except RecordError as problem:
            assert "\n" not in str(problem)

    for_a_while(check)


def test_what_the_decoder_accepts_it_gives_back_byte_by_byte_the_same() -> None:
    @fuzzing(200)
    @given(st.lists(whole, max_size=5))
    def check(records: list[Record]) -> None:
        data = b"".join(map(encode, records))
        assert b"".join(map(encode, decode(data))) == data

    for_a_while(check)


def test_a_journal_in_any_pieces_is_the_same_or_is_called_damaged() -> None:
    @fuzzing(200)
    @given(damaged(), st.booleans(), st.lists(st.integers(1, 400), max_size=20))
    def check(data: bytes, headed: bool, cuts: list[int]) -> None:
        if headed:
            data = len(data).to_bytes(4, "little") + bytes(4) + data + bytes(-len(data) % 8)
        out = bytearray()
        journal, at = Journal(out.extend), 0
        try:
            for size in [*cuts, len(data)]:
                journal.add(at, data[at : at + size])
                at += len(data[at : at + size])
            once, carry = strip_ring(data)
            assert bytes(out) == once
            assert carry == data[len(data) - len(carry) :]
        except (WitnessLost, RecordError) as problem:
            assert "\n" not in str(problem)

    for_a_while(check)


METHODS = ("GetInfo", "CreateBox", "Admit", "Attach", "SealBox", "DropBox", "ListBoxes", "ReadJournal")
names = st.text(max_size=80) | st.sampled_from(["mine", "mine-2", "../x", "a" * 64, "-"])
numbers = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1 << 16, 1 << 17])
requests = st.one_of(
    st.builds(
        pb.CreateBoxRequest,
        id=names,
        ring_bytes=numbers,
        lossless=st.sampled_from([False, False, False, True]),
        limits=st.builds(pb.Limits, memory_bytes=st.integers(0, 2**64 - 1), pids=numbers, cpu_millis=numbers),
        owner=st.none() | st.builds(pb.Owner, pid=st.integers(-(2**31), 2**31 - 1), start_ticks=numbers),
    ),
    st.builds(pb.AdmitRequest, id=names, pid=st.integers(-(2**31), 2**31 - 1), start_ticks=numbers),
    st.builds(pb.ReadJournalRequest, id=names, offset=st.integers(0, 2**64 - 1)),
    st.builds(pb.SealBoxRequest, id=names),
    st.builds(pb.DropBoxRequest, id=names),
    st.builds(pb.AttachRequest, id=names, cgroup_path=st.text(max_size=200), container=st.just("")),
)


@pytest.fixture
def stranger(daemon: Daemon) -> Iterator[Client]:
    """A plain user's connection: what it may do, it may do to its own boxes only."""
    client = daemon.client(NOBODY)
    yield client
    for box in client.stub.ListBoxes(pb.ListBoxesRequest(), timeout=30).boxes:
        client.drop(box.id)
    client.channel.close()


def answered(client: Client, method: str, data: bytes) -> None:
    """An answer or a status; the daemon says so itself, and at once."""
    kind = client.channel.unary_stream if method == "ReadJournal" else client.channel.unary_unary
    call = kind(f"/caisson.v1.Tracerd/{method}", request_serializer=bytes, response_deserializer=bytes)
    try:
        answer = call(data, timeout=20)
        if method == "ReadJournal":
            list(answer)
    except grpc.RpcError as problem:
        code = problem.code()  # type: ignore[attr-defined]
        assert code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), problem


@pytest.mark.root
@pytest.mark.bpf
def test_the_daemon_answers_whatever_it_is_asked_and_serves_on(
    daemon: Daemon, client: Client, stranger: Client
) -> None:
    client.create("witnessed")
    process = client.start("witnessed", ["/bin/sh", "-c", "while :; do /bin/true; done"])

    @fuzzing(80)
    @given(
        st.sampled_from(METHODS), requests.map(lambda request: request.SerializeToString()) | st.binary(max_size=400)
    )
    def check(method: str, data: bytes) -> None:
        # a follower would wait for the end of its box
        if method != "ReadJournal" or not pb_follows(data):
            answered(stranger, method, data)

    for_a_while(check)
    assert process.poll() is None
    assert daemon.process is not None
    assert daemon.process.poll() is None
    counts = client.seal("witnessed")
    process.kill()
    process.wait()
    records = client.records("witnessed")
    assert counts["exec"].delivered == sum(record.kind == Kind.EXEC for record in records) > 1
    assert sum(count.dropped_ring + count.dropped_map for count in counts.values()) == 0


def pb_follows(data: bytes) -> bool:
    try:
        return pb.ReadJournalRequest.FromString(data).follow
    except Exception:  # a request that cannot be read follows nothing
        return False
