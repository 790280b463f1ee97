"""The witness ``ebpf``: a client of tracerd over its unix socket.

The daemon makes the box's cgroup and ring, admits the process at the gate, and keeps the journal; this side only asks,
and at the end copies the journal into canonical form while it counts. A daemon that is restarted in the middle loses
nothing: the calls of the end wait for it and go on at the byte where they were.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from caisson_proto.record import API, Kind, RecordError, strip_ring

from caisson_runner.witness.coverage import Counts, Coverage, Freezes
from caisson_runner.witness.errors import DaemonDown, DaemonMismatch, WitnessError, WitnessLost
from caisson_runner.witness.scratch import owner, owner_is_gone, pid_namespace, scratch, start_ticks
from caisson_runner.witness.seam import Evidence, Limits

if TYPE_CHECKING:
    import grpc.aio
    from caisson_proto import tracerd_pb2, tracerd_pb2_grpc

# Read when grpc is first imported: without it grpc talks about every fork of a child process on stderr.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

T = TypeVar("T")

CALL_S: Final = 5.0
"""Seconds for one short call."""

SEAL_S: Final = 30.0
"""Seconds a run waits for a daemon that is being restarted."""

START_S: Final = 8.0
"""The same at the beginning of a run, when less is lost by giving up."""

MARKS: Final = 20
"""Sentences of the daemon that are kept."""

LIMITS: Final = {
    "tracepoint": (
        "Reads and writes are seen through opens, mappings and passed descriptors, not one by one.",
        "Of a change by path, links on the way are not followed: the record has the path as given and its folder.",
        "Datagrams of connected sockets are seen through their connect only.",
        "Looks (stat, access, readlink and their like) are recorded only when a box asks for them.",
    ),
    "trampoline": (
        "Reads and writes are seen through opens, mappings and passed descriptors, not one by one.",
        "Datagrams of connected sockets are seen through their connect only.",
        "Looks (stat, access, readlink and their like) are recorded only when a box asks for them.",
    ),
}

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits another one's wait for a daemon that was away
)


@dataclass(frozen=True, slots=True)
class Info:
    """What the daemon says it is."""

    version: str
    api: int
    tier: str
    hooks: tuple[str, ...]
    manifest: dict[str, Any]
    boot_wall_ns: int


def default_socket() -> Path:
    """This user's socket; the daemon makes one per user, and file permissions decide who you are."""
    named = os.environ.get("CAISSON_TRACERD_SOCKET")
    return Path(named) if named else Path(f"/run/caisson/{os.getuid()}/tracerd.sock")


def ask(path: Path, timeout_s: float = 2.0) -> Info:
    """Who answers on the socket. Raises `DaemonDown` or `DaemonMismatch` with what to do."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            why = "no such socket" if isinstance(error, FileNotFoundError) else error.strerror or "no answer"
            raise DaemonDown(
                f"no tracerd answers on {path} ({why}): start `tracerd serve` as root; runs can take --witness strace"
            ) from None
    import grpc
    from caisson_proto import tracerd_pb2, tracerd_pb2_grpc

    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        stub: Any = tracerd_pb2_grpc.TracerdStub(cast(Any, channel))  # the generated types know asyncio channels only
        try:
            said: tracerd_pb2.GetInfoResponse = stub.GetInfo(tracerd_pb2.GetInfoRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise DaemonMismatch(
                    f"what answers on {path} is no tracerd of this api ({API}): install the tracerd of this release"
                ) from None
            raise DaemonDown(
                f"tracerd on {path} does not say what it is ({code.name}): look at `tracerd doctor`, "
                "or use --witness strace"
            ) from None
    return read_info(said, path)


def read_info(said: tracerd_pb2.GetInfoResponse, path: Path) -> Info:
    """Refuses a daemon that speaks another api."""
    if said.api != API:
        age, todo = (
            ("older", "upgrade and restart tracerd") if said.api < API else ("newer", "upgrade caisson-run")
        )  # fmt: skip
        raise DaemonMismatch(
            f"tracerd {_plain(said.version)} on {path} is {age} than this caisson-run (api {said.api}, not {API}): "
            f"{todo}, or use --witness strace"
        )
    try:
        manifest = json.loads(said.manifest_json or "{}")
    except ValueError:
        manifest = {}
    return Info(
        said.version, said.api, said.tier, tuple(said.hooks), manifest if isinstance(manifest, dict) else {},
        said.boot_wall_ns,
    )  # fmt: skip


class EbpfWitness:
    name = "ebpf"

    def __init__(self, path: Path, info: Info, reason: str = "", lossless: bool = False, looks: bool = False) -> None:
        self.path = path
        self.info = info
        self.lossless = lossless
        self.looks = looks
        self._swept = False
        self.reason = reason or f"tracerd {_plain(info.version)} answers on {path} (tier {_plain(info.tier)})"

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits = Limits()) -> AsyncIterator[EbpfWatch]:  # noqa: B008
        import grpc.aio
        from caisson_proto import tracerd_pb2, tracerd_pb2_grpc

        async with grpc.aio.insecure_channel(f"unix:{self.path}", options=_OPTIONS) as channel:
            stub = tracerd_pb2_grpc.TracerdStub(channel)
            if not self._swept:
                self._swept = True
                await _sweep(stub)
            name = owned_name(box_id)
            pid = os.getpid()
            request = tracerd_pb2.CreateBoxRequest(
                id=name,
                lossless=self.lossless,
                looks=self.looks,
                owner=tracerd_pb2.Owner(pid=pid, start_ticks=start_ticks(pid), pid_namespace=pid_namespace()),
                limits=tracerd_pb2.Limits(
                    memory_bytes=limits.memory_bytes, pids=limits.pids, cpu_millis=limits.cpu_millis
                ),
            )
            with scratch() as folder:
                try:
                    made = await _patiently("make a box", lambda: _create(stub, request), START_S)
                    yield EbpfWatch(stub, made, self, folder)
                finally:
                    await _drop(stub, name)  # also when cancelled, and when nobody knows whether the box was made


class EbpfWatch:
    """One box at the daemon."""

    wrap: tuple[str, ...] = ()

    def __init__(
        self,
        stub: tracerd_pb2_grpc.TracerdStub,
        made: tracerd_pb2.CreateBoxResponse,
        witness: EbpfWitness,
        scratch: Path,
    ) -> None:
        self._stub = stub
        self._id = made.box.id
        self._witness = witness
        self._scratch = scratch
        self._sealed: Evidence | None = None
        self._admitted = 0
        self.attached = False
        """A container of somebody else's: nothing is ever admitted."""
        self.cgroup: Path | None = Path(made.box.cgroup_path)
        self.limits_missing = tuple(made.limits_missing)

    def wrap_exec(self) -> tuple[str, ...]:
        return ()

    async def admit(self, pid: int) -> None:
        from caisson_proto import tracerd_pb2

        request = tracerd_pb2.AdmitRequest(id=self._id, pid=pid, start_ticks=start_ticks(pid))
        await _patiently(f"admit process {pid}", lambda: self._stub.Admit(request, timeout=CALL_S))
        self._admitted += 1

    async def seal(self) -> Evidence:
        if self._sealed is None:
            self._sealed = await self._seal()
        return self._sealed

    async def _seal(self) -> Evidence:
        from caisson_proto import tracerd_pb2

        request = tracerd_pb2.SealBoxRequest(id=self._id)
        sealed = await _patiently("seal the box", lambda: self._stub.SealBox(request, timeout=SEAL_S))
        events = self._scratch / "events.bin"
        with events.open("wb") as file:
            journal = Journal(file.write)
            await _patiently("read the journal", lambda: self._read(journal, sealed.journal_bytes))
        counts = {
            one.kind: Counts(one.seen, one.delivered, one.dropped_ring, one.dropped_map, one.unreadable, one.partial)
            for one in sealed.counts
        }
        gaps = journal.gaps(counts, sealed.journal_bytes, sealed.marks)
        if not self._admitted and not self.attached:
            gaps.append("No process was admitted.")
        info = self._witness.info
        coverage = Coverage(
            "ebpf", info.tier, self._witness.reason, counts, hooks=info.hooks, limits=LIMITS.get(info.tier, ()),
            gaps=tuple(gaps), boot_wall_ns=info.boot_wall_ns, manifest=info.manifest, freezes=_freezes(sealed),
        )  # fmt: skip
        return Evidence(events, coverage.as_json(), coverage)

    async def _read(self, journal: Journal, total: int) -> None:
        from caisson_proto import tracerd_pb2

        while journal.offset < total:
            before = journal.offset
            request = tracerd_pb2.ReadJournalRequest(id=self._id, offset=journal.offset)
            async for piece in self._stub.ReadJournal(request, timeout=SEAL_S):
                journal.add(piece.offset, piece.data)
            if journal.offset == before:
                return


class Journal:
    """A journal on its way into canonical form: where we are, and how many records of each kind came by."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._carry = b""
        self.offset = 0
        self.kinds: Counter[int] = Counter()

    def add(self, offset: int, data: bytes) -> None:
        """The next piece. A piece that was partly read before a reconnect is taken from where we stopped."""
        if offset > self.offset:
            raise WitnessLost(f"tracerd skipped journal bytes {self.offset} to {offset}: the record cannot be trusted")
        data = data[self.offset - offset :]
        if not data:
            return
        try:
            canonical, self._carry = strip_ring(data, self._carry)
        except RecordError as error:
            raise WitnessLost(f"the journal is damaged near byte {self.offset}: {error.reason}") from None
        self.offset += len(data)
        at = 0
        while at < len(canonical):
            self.kinds[int.from_bytes(canonical[at + 4 : at + 6], "little")] += 1
            at += int.from_bytes(canonical[at : at + 4], "little")
        self._write(canonical)

    def gaps(self, counts: dict[str, Counts], total: int, marks: Iterable[str] = ()) -> list[str]:
        """Where what came does not agree with what the kernel counted, and what the daemon says went wrong."""
        said = [mark for mark in marks if not _harmless(mark, counts)]
        if self.offset != total or self._carry:
            said.append(f"The journal has {total} bytes, {self.offset - len(self._carry)} could be read.")
        for number, found in sorted(self.kinds.items()):
            name = Kind(number).name.lower() if number in set(Kind) else f"kind-{number}"
            if name not in counts:
                said.append(f"The journal holds {found} {name} records nobody counted.")
        for name, count in sorted(counts.items()):
            found = self.kinds[Kind[name.upper()]] if name.upper() in Kind.__members__ else 0
            if found != count.delivered:
                said.append(f"The kernel delivered {count.delivered} {name} records, the journal holds {found}.")
            if not count.balanced:
                said.append(f"The counters of {name} records do not add up.")
        return said


def _harmless(mark: str, counts: dict[str, Counts]) -> bool:
    """The journal could not be written for some time, and nothing was lost by it."""
    return "for some time" in mark and not any(one.dropped for one in counts.values())


def _freezes(sealed: tracerd_pb2.SealBoxResponse) -> Freezes | None:
    """How often the box stood still so that nothing was dropped; None for a box that was never to stand still."""
    if not sealed.HasField("freezes"):
        return None
    found = sealed.freezes
    return Freezes(
        found.count, found.total_ns, found.longest_ns, found.peak_bytes, found.ring_bytes,
        tuple((gap.begin_ns, gap.end_ns) for gap in found.gaps),
    )  # fmt: skip


async def _create(
    stub: tracerd_pb2_grpc.TracerdStub, request: tracerd_pb2.CreateBoxRequest
) -> tracerd_pb2.CreateBoxResponse:
    """A box of a name nobody else uses: when it is there already, the answer to an earlier try was lost."""
    import grpc
    from caisson_proto import tracerd_pb2

    try:
        return await stub.CreateBox(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
        listed = await stub.ListBoxes(tracerd_pb2.ListBoxesRequest(), timeout=CALL_S)
        for box in listed.boxes:
            if box.id == request.id and box.state == tracerd_pb2.Box.STATE_OPEN and not box.journal_bytes:
                return tracerd_pb2.CreateBoxResponse(box=box)
        raise


def owned_name(box_id: str) -> str:
    """The box's name at the daemon: behind it who owns it, so that a killed runner's boxes can be told and dropped."""
    if not re.fullmatch(r"[a-z0-9-]{1,64}", box_id):
        raise WitnessError(f"{box_id[:80]!a} cannot be a box's id: use 1 to 64 of a-z, 0-9 and -")
    prefix = owner() + "-"
    return prefix + box_id[-(64 - len(prefix)) :]


async def _sweep(stub: tracerd_pb2_grpc.TracerdStub) -> None:
    """Drops the boxes of this user's runners that are gone. Those of another pid namespace are left alone."""
    from caisson_proto import tracerd_pb2

    request = tracerd_pb2.ListBoxesRequest()
    listed = await _patiently("list boxes", lambda: stub.ListBoxes(request, timeout=CALL_S), START_S)
    for box in listed.boxes:
        if owner_is_gone(box.id):
            await _drop(stub, box.id)


async def _drop(stub: tracerd_pb2_grpc.TracerdStub, name: str) -> None:
    """Drops a box whatever happens meanwhile; a daemon that is away or knows no such box is no error here."""
    import grpc
    from caisson_proto import tracerd_pb2

    async def call() -> None:
        with suppress(grpc.RpcError):
            await stub.DropBox(tracerd_pb2.DropBoxRequest(id=name), timeout=CALL_S)

    dropping = asyncio.ensure_future(call())
    try:
        await asyncio.shield(dropping)
    except asyncio.CancelledError:
        await asyncio.wait([dropping], timeout=CALL_S)
        raise


async def _patiently(what: str, make: Callable[[], Awaitable[T]], within_s: float = SEAL_S) -> T:
    """One call, again and again while the daemon is away; its failure in our words."""
    import grpc

    deadline = time.monotonic() + within_s
    while True:
        try:
            return await make()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise _error(what, error) from None
        await asyncio.sleep(0.2)


def _error(what: str, error: grpc.aio.AioRpcError) -> WitnessError:
    import grpc

    code, details = error.code(), _plain(error.details() or "")
    if code is grpc.StatusCode.UNAVAILABLE:
        return WitnessLost(f"tracerd went away, could not {what}: look at `tracerd status`, then run again")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WitnessLost(f"tracerd did not {what} in time: look at `tracerd status`, then run again")
    return WitnessError(f"tracerd refused to {what}: {details or code.name}")


def _plain(text: str) -> str:
    """One printable line of at most 300 characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:300])
