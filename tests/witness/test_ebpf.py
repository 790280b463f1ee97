"""The eBPF witness against a real tracerd, and the same scenario under both witnesses."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from caisson_proto.record import API, Kind, Record, encode
from caisson_runner.witness import DaemonDown, DaemonMismatch, Limits, WitnessError, WitnessLost, choose, ebpf
from caisson_runner.witness.choose import LOSSLESS
from caisson_runner.witness.ebpf import EbpfWitness, Journal, ask, owned_name
from caisson_runner.witness.strace import StraceWitness
from witness_daemon import Daemon
from witness_rig import launch, watched
from witness_story import PARITY, facts

real = [pytest.mark.root, pytest.mark.bpf]


def marked(test: Callable[..., Any]) -> Callable[..., Any]:
    for mark in real:
        test = mark(test)
    return test


@marked
async def test_everything_a_box_did_is_in_the_record_from_its_first_exec_to_its_exit(daemon: Daemon) -> None:
    witness = choose("ebpf", daemon.socket)
    assert witness.name == "ebpf"
    async with witness.watch("b1", Limits(pids=50)) as watch:
        assert watch.cgroup is not None
        assert (watch.cgroup / "cgroup.freeze").exists()
        assert await watched(watch, ["/bin/sh", "-c", "echo x > /tmp/out; exit 5"]) == 5
        evidence = await watch.seal()
        records = list(evidence.records())
        cgroup = watch.cgroup
    assert evidence.coverage["complete"], evidence.coverage
    assert (records[0].kind, records[0].argv) == (Kind.EXEC, (b"/bin/sh", b"-c", b"echo x > /tmp/out; exit 5"))
    assert (records[-1].kind, records[-1].args[0]) == (Kind.EXIT, 5)
    assert [one.seq for one in records] == list(range(1, len(records) + 1))
    assert b"/tmp/out" in {one.resolved for one in records}
    assert evidence.coverage["counts"]["exec"]["delivered"] == sum(one.kind is Kind.EXEC for one in records)
    assert not cgroup.exists(), "the box is dropped with the watch"


@marked
@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
async def test_both_witnesses_tell_the_same_facts(daemon: Daemon) -> None:
    told = []
    for witness in (choose("ebpf", daemon.socket), StraceWitness()):
        async with witness.watch("parity", Limits()) as watch:
            assert await watched(watch, ["/usr/bin/python3", "-S", "-c", PARITY]) == 0
            evidence = await watch.seal()
            assert evidence.coverage["complete"], evidence.coverage
            told.append(facts(evidence.records()))
    ebpf, strace = told
    only = {"ebpf": sorted(map(repr, ebpf - strace)), "strace": sorted(map(repr, strace - ebpf))}
    assert only == {"ebpf": [], "strace": []}, "\n".join(["", *only["ebpf"], "--- strace:", *only["strace"]])


@marked
async def test_daemon_killed_and_restarted_in_the_middle_loses_nothing(daemon: Daemon) -> None:
    async with choose("ebpf", daemon.socket).watch("restart", Limits()) as watch:
        script = "for i in 1 2 3; do /bin/true; done; sleep 1; for i in 1 2 3; do /bin/true; done"
        waiting = await launch(["/bin/sh", "-c", script])
        await watch.admit(waiting.pid)
        waiting.open()
        await asyncio.sleep(0.4)
        daemon.kill()
        await waiting.finish()
        sealing = asyncio.create_task(watch.seal())
        await asyncio.sleep(0.3)
        daemon.start()  # from this thread: the daemon is made to die with the thread that started it
        evidence = await sealing
        trues = [one for one in evidence.records() if one.kind is Kind.EXEC and one.given == b"/bin/true"]
    assert evidence.coverage["complete"], evidence.coverage
    assert len(trues) == 6


@marked
async def test_lossless_run_says_how_often_it_stood_still_and_is_complete(daemon: Daemon) -> None:
    flood = "import os\nfor _ in range(60000): os.close(os.open('/dev/null', 0))"
    witness = choose(LOSSLESS, daemon.socket)
    assert witness.name == "ebpf"
    async with witness.watch("lossless", Limits()) as watch:
        assert await watched(watch, ["/usr/bin/python3", "-S", "-c", flood]) == 0
        evidence = await watch.seal()
    assert evidence.coverage["complete"], evidence.coverage
    stood = evidence.coverage["freezes"]
    assert stood["peak_bytes"] <= stood["ring_bytes"]
    assert evidence.coverage["counts"]["open"]["delivered"] >= 60_000


@marked
async def test_cancelled_run_leaves_no_box_at_the_daemon(daemon: Daemon) -> None:
    started = asyncio.Event()

    async def run() -> None:
        async with choose("ebpf", daemon.socket).watch("cancelled", Limits()):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.wait_for(started.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        stub: Any = rpc.TracerdStub(cast(Any, channel))
        boxes = stub.ListBoxes(pb.ListBoxesRequest(), timeout=5).boxes
    assert not [box.id for box in boxes if "cancelled" in box.id]


@marked
async def test_boxes_of_a_killed_runner_are_dropped_by_the_next_and_those_of_a_living_one_are_not(
    daemon: Daemon,
) -> None:
    mine = owned_name("alive")
    words = mine.split("-")
    dead = "-".join([words[0], words[1], "1", "dead"])
    elsewhere = "-".join(["r1", words[1], "1", "elsewhere"])
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        stub: Any = rpc.TracerdStub(cast(Any, channel))
        for name in (mine, dead, elsewhere):
            stub.CreateBox(pb.CreateBoxRequest(id=name), timeout=5)
        async with choose("ebpf", daemon.socket).watch("next", Limits()):
            left = {box.id for box in stub.ListBoxes(pb.ListBoxesRequest(), timeout=5).boxes}
        for name in (mine, elsewhere):
            stub.DropBox(pb.DropBoxRequest(id=name), timeout=5)
    assert left & {mine, dead, elsewhere} == {mine, elsewhere}


@marked
async def test_refusals_of_the_daemon_are_one_clear_line(daemon: Daemon) -> None:
    witness = choose("ebpf", daemon.socket)
    async with witness.watch("b2", Limits()) as watch:
        with pytest.raises(WitnessError, match="admit process 4194304") as caught:
            await watch.admit(4194304)
        assert "\n" not in str(caught.value)
        evidence = await watch.seal()
        assert not evidence.coverage["complete"], "nothing was admitted"
    with pytest.raises(WitnessError, match="cannot be a box's id"):
        async with witness.watch("Not A Name", Limits()):
            pass


@marked
def test_auto_takes_the_daemon_and_says_so(daemon: Daemon) -> None:
    witness = choose("auto", daemon.socket)
    assert witness.name == "ebpf"
    assert str(daemon.socket) in witness.reason


class Answers(rpc.TracerdServicer):
    """A daemon of another age: only for what a real one of this checkout cannot be."""

    def __init__(self, api: int) -> None:
        self.api = api

    def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # type: ignore[override]
        return pb.GetInfoResponse(version="9.9\x1b[31m", api=self.api, tier="tracepoint", manifest_json="{")


@contextmanager
def other_daemon(path: Path, api: int | None) -> Iterator[None]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    if api is not None:
        rpc.add_TracerdServicer_to_server(Answers(api), cast(Any, server))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("api", "says"),
    [(API - 1, "older.*upgrade and restart tracerd"), (API + 1, "newer.*upgrade caisson-run"), (None, "is no tracerd")],
)
def test_daemon_of_another_age_is_refused_with_what_to_do(tmp_path: Path, api: int | None, says: str) -> None:
    with other_daemon(tmp_path / "s", api):
        with pytest.raises(DaemonMismatch, match=says) as caught:
            choose("ebpf", tmp_path / "s")
        assert str(caught.value).isprintable()
        assert choose("auto", tmp_path / "s").name == ("strace" if shutil.which("strace") else "none")


def test_daemon_that_is_down_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DaemonDown, match=r"no such socket.*tracerd serve.*--witness strace"):
        choose("ebpf", tmp_path / "none")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(tmp_path / "dead"))
    with pytest.raises(DaemonDown, match="Connection refused"):
        choose("ebpf", tmp_path / "dead")


def test_socket_that_never_answers_costs_seconds_not_a_hang(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(os.fspath(tmp_path / "mute"))
        mute.listen()
        stop = threading.Event()
        try:
            with pytest.raises(DaemonDown, match="does not say what it is"):
                ask(tmp_path / "mute", timeout_s=0.5)
        finally:
            stop.set()


def test_unknown_witness_is_one_clear_line() -> None:
    with pytest.raises(WitnessError, match="auto, ebpf, strace, none"):
        choose("dtrace")


async def test_none_says_that_nothing_was_watched() -> None:
    async with choose("none").watch("b1", Limits()) as watch:
        await watch.admit(1)
        evidence = await watch.seal()
        assert list(evidence.records()) == []
    assert not evidence.coverage["complete"]
    assert evidence.coverage["reason"] == "nothing was watched"


def spans(count: int) -> bytes:
    one = encode(Record(Kind.OPEN, given=b"/x"))
    return (len(one).to_bytes(4, "little") + bytes(4) + one) * count


def test_journal_goes_on_where_a_broken_stream_stopped() -> None:
    whole, out = spans(10), bytearray()
    journal = Journal(out.extend)
    journal.add(0, whole[:250])
    journal.add(100, whole[100:700])
    journal.add(700, whole[700:])
    assert bytes(out) == encode(Record(Kind.OPEN, given=b"/x")) * 10
    assert journal.kinds[Kind.OPEN] == 10


def test_hole_or_damage_in_a_journal_is_never_passed_over() -> None:
    journal = Journal(bytearray().extend)
    with pytest.raises(WitnessLost, match="skipped"):
        journal.add(8, b"x")
    with pytest.raises(WitnessLost, match="damaged"):
        journal.add(0, b"\xff" * 200)


def test_kernel_that_counted_more_than_came_is_a_gap() -> None:
    from caisson_runner.witness.coverage import Counts, Coverage

    journal = Journal(bytearray().extend)
    journal.add(0, spans(2))
    gaps = journal.gaps({"open": Counts(3, 3), "exec": Counts(2, 1)}, journal.offset)
    assert len(gaps) == 3
    coverage = Coverage("ebpf", "tracepoint", "x", {"open": Counts(3, 2, dropped_ring=1)})
    assert not coverage.complete
    assert coverage.reason == "1 events were dropped"


def test_what_the_daemon_says_went_wrong_is_a_gap_unless_nothing_was_lost_by_it() -> None:
    from caisson_runner.witness.coverage import Counts

    journal, counts = Journal(bytearray().extend), {"open": Counts()}
    left_out = "The kernel left out 3 runs of the programs on this machine (preempted in one); events may be missing."
    waited = "The journal could not be written for some time: No space left on device."
    assert journal.gaps(counts, 0, [left_out, waited]) == [left_out]
    assert journal.gaps({"open": Counts(2, dropped_ring=2)}, 0, [waited]) == [waited]


def test_api_number_is_the_loaders() -> None:
    from caisson_tracerd import loader

    assert loader.API == API


def test_witness_can_be_made_without_a_daemon_and_fails_at_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ebpf, "START_S", 0.3)

    async def run() -> None:
        from caisson_runner.witness.ebpf import Info

        witness = EbpfWitness(tmp_path / "gone", Info("0", API, "tracepoint", (), {}, 0))
        async with witness.watch("b1", Limits()):
            pass

    with pytest.raises(WitnessLost, match="tracerd went away"):
        asyncio.run(run())
