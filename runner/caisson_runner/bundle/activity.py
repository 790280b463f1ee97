"""What the agent did, drawn from the record and the state diff: a pure model, small enough to read.

One pass over the records, in memory bounded by `MAX_ITEMS` of each kind; what is beyond is counted, never dropped
silently.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EINPROGRESS
from typing import Final

from caisson_proto.record import ChangeOp, Flag, Kind, Record

from caisson_runner.bundle.places import ROOMS, Places, below, target, writes
from caisson_runner.bundle.writer import Change

MAX_ITEMS: Final = 20_000

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Command:
    """One successful exec of a process."""

    seq: int
    time_ns: int
    given: bytes
    argv: tuple[bytes, ...]
    cwd: bytes | None
    interp: bytes | None = None
    cut: bool = False


@dataclass(slots=True)
class Process:
    """One process of the box, by its identity; ``commands`` in the order it became them."""

    pid: int
    start_ns: int
    comm: bytes = b""
    parent: Identity | None = None
    commands: list[Command] = field(default_factory=list)
    children: list[Identity] = field(default_factory=list)
    failed_execs: int = 0
    opens: int = 0
    failed_opens: int = 0
    exit_code: int | None = None
    signal: int | None = None
    harness: bool = False
    """Started by the naive harness in the agent's box, not by the agent."""

    @property
    def identity(self) -> Identity:
        return self.pid, self.start_ns

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.signal is not None


@dataclass(slots=True)
class Touch:
    """Opens of one path by one process, as one command of it."""

    path: bytes
    process: Identity
    command: Command | None
    tags: tuple[str, ...]
    first_seq: int
    writing: bool
    count: int = 0
    errors: Counter[int] = field(default_factory=Counter)

    @property
    def succeeded(self) -> int:
        return self.count - sum(self.errors.values())


@dataclass(slots=True)
class Attempt:
    """Connects of one process to one address, with how often each result came."""

    where: bytes
    family: int
    port: int
    process: Identity
    first_seq: int
    results: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Changed:
    """One path of the state diff. ``by`` made it so, ``via`` says how each did; without any, ``near`` are likely.

    Where a witness tells no changes, a file that was renamed into place, linked, unlinked or made a folder has nobody
    in ``by``: near are then processes that wrote in the same folder or whose command names the file.
    """

    path: bytes
    how: str
    kind: str
    size: int
    tags: tuple[str, ...]
    by: tuple[Identity, ...]
    near: tuple[Identity, ...]
    via: tuple[str, ...] = ()
    """For each of ``by``: ``open`` (for writing), ``rename``, ``link``, ``unlink``, ``chmod``, …"""


@dataclass(slots=True)
class Activity:
    """Everything `render` shows. ``missed`` counts items beyond `MAX_ITEMS`, by kind."""

    places: Places
    processes: dict[Identity, Process] = field(default_factory=dict)
    roots: list[Identity] = field(default_factory=list)
    touches: dict[tuple[bytes, Identity, int, bool], Touch] = field(default_factory=dict)
    attempts: dict[tuple[bytes, Identity], Attempt] = field(default_factory=dict)
    deeds: dict[bytes, dict[Identity, str]] = field(default_factory=dict)
    """Path -> who altered it without an open, and how (last)."""
    changes: list[Changed] = field(default_factory=list)
    failed_execs: Counter[int] = field(default_factory=Counter)
    records: int = 0
    opens: int = 0
    failed_opens: int = 0
    toctou: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0

    def touched(self) -> list[Touch]:
        """Everything the agent's own processes opened that counts here, in the order it began."""
        return [one for one in self.touches.values() if not self.is_harness(one.process)]

    def written(self) -> list[Touch]:
        """Of it, opens for writing that succeeded."""
        return [one for one in self.touched() if one.writing and one.succeeded]

    def is_harness(self, identity: Identity) -> bool:
        process = self.processes.get(identity)
        return process is not None and process.harness


def activity(
    records: Iterable[Record],
    changes: Iterable[Change] = (),
    workspace: bytes | str = b"/app",
    test_paths: Sequence[bytes | str] = (),
    harness: Collection[int] = (),
) -> Activity:
    """Builds the model.

    ``test_paths`` are the task's visible tests (see `Places`); ``harness`` the pids of processes that the harness
    started in the agent's box.
    """
    places = Places(_bytes(workspace), tuple(map(_bytes, test_paths)))
    model = Activity(places)
    for record in records:
        _add(model, record)
    model.roots = [identity for identity, one in model.processes.items() if one.parent not in model.processes]
    _mark(model, harness)
    model.changes = list(_changes(model, changes))
    return model


def _mark(model: Activity, harness: Collection[int]) -> None:
    """The harness's processes and everything below them."""
    stack = [identity for identity in model.roots if identity[0] in harness]
    while stack:
        process = model.processes[stack.pop()]
        if not process.harness:
            process.harness = True
            stack += [child for child in process.children if child in model.processes]


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _add(model: Activity, record: Record) -> None:
    model.records += 1
    model.first_ns = min(model.first_ns or record.time_ns, record.time_ns)
    model.last_ns = max(model.last_ns, record.time_ns)
    if record.flags & Flag.TOCTOU:
        model.toctou += 1
    process = _process(model, record)
    if process is None:
        model.missed["processes"] += 1
        return
    if record.kind is Kind.FORK:
        _fork(model, process, record)
    elif record.kind is Kind.EXEC:
        _exec(model, process, record)
    elif record.kind is Kind.EXIT:
        if not record.flags & Flag.THREAD:
            process.exit_code = None if record.args[1] else record.args[0]
            process.signal = record.args[1] or None
    elif record.kind is Kind.OPEN:
        _open(model, process, record)
    elif record.kind is Kind.CONNECT:
        _connect(model, process, record)
    elif record.kind is Kind.CHANGE:
        _alter(model, process, record)


def _process(model: Activity, record: Record) -> Process | None:
    process = model.processes.get(record.identity)
    if process is None and len(model.processes) < MAX_ITEMS:
        process = Process(record.pid, record.start_ns, record.comm, (record.ppid, record.parent_start_ns))
        model.processes[record.identity] = process
        if parent := model.processes.get((record.ppid, record.parent_start_ns)):
            parent.children.append(record.identity)
    return process


def _fork(model: Activity, process: Process, record: Record) -> None:
    if record.flags & Flag.THREAD:
        return
    child = model.processes.get(record.child)
    if child is None:
        if len(model.processes) >= MAX_ITEMS:
            model.missed["processes"] += 1
            return
        child = model.processes[record.child] = Process(*record.child, comm=process.comm)
    elif child.parent in model.processes and child.identity in model.processes[child.parent].children:
        model.processes[child.parent].children.remove(child.identity)
    child.parent = process.identity  # the one that made it, also when it was given to another parent meanwhile
    process.children.append(child.identity)


def _exec(model: Activity, process: Process, record: Record) -> None:
    if record.error:
        process.failed_execs += 1
        model.failed_execs[record.error] += 1
        return
    cut = bool(record.flags & Flag.TRUNCATED)
    path = record.asked or record.resolved or b""
    process.commands.append(
        Command(record.seq, record.time_ns, path, record.argv or (), record.cwd, record.interp, cut)
    )
    process.comm = record.comm


def _open(model: Activity, process: Process, record: Record) -> None:
    model.opens += 1
    process.opens += 1
    process.failed_opens += bool(record.error)
    model.failed_opens += bool(record.error)
    path = target(record)
    if path is None:
        return
    writing = writes(record)
    tags = model.places.tags(path)
    if not (writing or {"test", "config", "room"} & set(tags)):
        return
    key = (path, process.identity, len(process.commands), writing)
    touch = model.touches.get(key)
    if touch is None:
        if len(model.touches) >= MAX_ITEMS:
            model.missed["opens"] += 1
            return
        command = process.commands[-1] if process.commands else None
        touch = model.touches[key] = Touch(path, process.identity, command, tags, record.seq, writing)
    touch.count += 1
    if record.error:
        touch.errors[record.error] += 1


def _connect(model: Activity, process: Process, record: Record) -> None:
    where = address(record.args[0], record.args[1], record.addr)
    key = (where, process.identity)
    attempt = model.attempts.get(key)
    if attempt is None:
        if len(model.attempts) >= MAX_ITEMS:
            model.missed["connects"] += 1
            return
        attempt = Attempt(where, record.args[0], record.args[1], process.identity, record.seq)
        model.attempts[key] = attempt
    if record.flags & Flag.LATER and attempt.results[EINPROGRESS]:
        attempt.results[EINPROGRESS] -= 1  # how the one that was under way ended
    attempt.results += Counter({record.error: 1})


def _alter(model: Activity, process: Process, record: Record) -> None:
    for path in record.altered:
        if path not in model.deeds and len(model.deeds) >= MAX_ITEMS:
            model.missed["changes"] += 1
            return
        model.deeds.setdefault(path, {})[process.identity] = ChangeOp(record.args[0]).name.lower()


def address(family: int, port: int, raw: bytes | None) -> bytes:
    """Where a connect went, as bytes for display: ``192.0.2.1:80``, ``[2001:db8::1]:53``, ``unix:/path``."""
    if family == socket.AF_INET and raw is not None and len(raw) >= 8:
        return f"{socket.inet_ntop(socket.AF_INET, raw[4:8])}:{port}".encode()
    if family == socket.AF_INET6 and raw is not None and len(raw) >= 24:
        return f"[{socket.inet_ntop(socket.AF_INET6, raw[8:24])}]:{port}".encode()
    if family == socket.AF_UNIX and raw is not None:
        name = raw[2:]
        return b"unix:@" + name[1:] if name.startswith(b"\0") and name.strip(b"\0") else b"unix:" + name.split(b"\0")[0]
    return f"family {family}".encode()


def _changes(model: Activity, changes: Iterable[Change]) -> Iterator[Changed]:
    writers: dict[bytes, dict[Identity, None]] = {}
    folders: dict[bytes, dict[Identity, None]] = {}
    all_changes = list(changes)
    naming = _naming(model)
    final = {b"/" + one.path.lstrip(b"/") for one in all_changes}
    for touch in model.written():
        writers.setdefault(touch.path, {})[touch.process] = None
        if touch.path not in final:  # written and gone: renamed away, or a temporary file
            folders.setdefault(touch.path.rpartition(b"/")[0], {})[touch.process] = None
    for one in all_changes:
        path = b"/" + one.path.lstrip(b"/")
        ways = _deeds(model, path) | dict.fromkeys(writers.get(path, ()), "open")
        by = tuple(ways)
        near: tuple[Identity, ...] = ()
        if not by and one.kind != "dir":
            folder, _slash, name = path.rpartition(b"/")
            near = tuple(folders.get(folder, {}) | naming.get(name, {}))
        yield Changed(path, one.how, one.kind, one.size, model.places.tags(path), by, near, tuple(ways.values()))


def _deeds(model: Activity, path: bytes) -> dict[Identity, str]:
    """Who altered a path without an open; or moved, for want of that, a folder it lies in."""
    found = model.deeds.get(path, {})
    while not found and (path := path.rpartition(b"/")[0]):
        found = {who: how for who, how in model.deeds.get(path, {}).items() if how == "rename"}
    return {who: how for who, how in found.items() if not model.is_harness(who)}


def _naming(model: Activity) -> dict[bytes, dict[Identity, None]]:
    """By the last name of a path: the agent's processes with a command that has it as one of its arguments."""
    found: dict[bytes, dict[Identity, None]] = {}
    for process in model.processes.values():
        if not process.harness:
            for name in {argument.rpartition(b"/")[2] for one in process.commands for argument in one.argv[1:]}:
                found.setdefault(name, {})[process.identity] = None
    return found


def looked_for(model: Activity) -> list[Touch]:
    """Opens in rooms of answer keys and graders, found or not."""
    return [
        one for one in model.touches.values() if any(below(one.path, room) for room in ROOMS) and "room" in one.tags
    ]
