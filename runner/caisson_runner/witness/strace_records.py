"""Lines of one strace into records: who forked whom, where each process stands, what each call meant. No I/O.

strace shows a child's first lines before the parent's fork has returned, so lines of a thread nobody has claimed wait
until its fork is seen. A thread whose fork never returns (its parent was killed in it) is told at the end, without a
parent.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from caisson_proto.record import MAX_RECORD, Flag, Kind, Record

from caisson_runner.witness import strace_lines as text
from caisson_runner.witness.strace_changes import CHANGES, change
from caisson_runner.witness.strace_lines import Line, Result

MAX_WAITING: Final = 100_000
"""Lines kept for threads whose fork was not seen yet; more are counted as unreadable."""

_MAX_PID: Final = 1 << 22
_MAX_ARGV: Final = 128 << 10
_EXITED: Final = re.compile(rb"\+\+\+ exited with (\d{1,10}) \+\+\+")
_KILLED: Final = re.compile(rb"\+\+\+ killed by (SIG\w+)( \(core dumped\))? \+\+\+")
_SUPERSEDED: Final = re.compile(rb"\+\+\+ superseded by execve in pid (\d{1,10}) \+\+\+")
_PERSONALITY: Final = re.compile(rb"\[ Process PID=\d+ runs in (\w+) mode\. \]")
_KINDS: Final = {
    "execve": Kind.EXEC, "execveat": Kind.EXEC, "open": Kind.OPEN, "creat": Kind.OPEN, "openat": Kind.OPEN,
    "openat2": Kind.OPEN, "connect": Kind.CONNECT, "fork": Kind.FORK, "vfork": Kind.FORK, "clone": Kind.FORK,
    "clone3": Kind.FORK,
} | dict.fromkeys(CHANGES, Kind.CHANGE)  # fmt: skip
_NUMBERS: Final = (
    {"open": 2, "creat": 85, "openat": 257, "openat2": 437}
    if os.uname().machine == "x86_64"
    else {"openat": 56, "openat2": 437}
)


@dataclass(slots=True)
class Process:
    """What is known of one process; the one at the gate is made from /proc, the others from their fork."""

    pid: int
    start_ns: int
    ppid: int = 0
    parent_start_ns: int = 0
    uid: int = 0
    gid: int = 0
    cwd: bytes | None = None
    comm: bytes = b""
    compat: bool = False
    threads: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Thread:
    tid: int
    process: Process
    half: tuple[str, bytes, int] | None = None
    superseded: int = 0


class Reading:
    """The state of reading one strace output. Feed it lines in order, then call `finish`.

    ``roots`` are the processes that stand at the gate where the lines begin; ``outside`` are threads of the launcher,
    which never count. ``nested`` says that the box has its own pid namespace: then only numbers strace translated are
    host pids. ``boot_offset_ns`` is wall-clock time minus CLOCK_BOOTTIME.
    """

    def __init__(
        self, roots: Iterable[Process], *, outside: Iterable[int] = (), nested: bool = True, boot_offset_ns: int = 0
    ) -> None:
        self._threads: dict[int, _Thread] = {}
        self._outside = set(outside)
        self._nested = nested
        self._offset = boot_offset_ns
        self._waiting: dict[int, deque[Line]] = {}
        self._waiting_lines = 0
        self._unclaimed: deque[tuple[Process, int, int]] = deque()
        self.delivered: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        for root in roots:
            root.threads = {root.pid}
            self._threads[root.pid] = _Thread(root.pid, root)
            self._outside.discard(root.pid)

    def feed(self, raw: bytes) -> Iterator[Record]:
        """Records one line completes; usually one or none."""
        line = text.read_line(raw)
        if line is None:
            self.unreadable["line"] += 1
            return
        if line.tid in self._outside:
            return
        thread = self._threads.get(line.tid)
        if thread is None and self._unclaimed:
            parent, flags, at = self._unclaimed.popleft()
            yield self._fork(parent, line.tid, flags, at)
            thread = self._threads[line.tid]
        if thread is None:
            if self._waiting_lines >= MAX_WAITING:
                self.unreadable["line"] += 1
                return
            self._waiting.setdefault(line.tid, deque()).append(line)
            self._waiting_lines += 1
            return
        yield from self._line(thread, line)

    def finish(self) -> Iterator[Record]:
        """Records of threads whose fork was never seen to return."""
        while self._waiting:
            tid = next(iter(self._waiting))
            at = self._waiting[tid][0].wall_ns
            process = Process(tid, self._boot(at), threads={tid})
            self._threads[tid] = _Thread(tid, process)
            yield from self._wake(tid)

    @property
    def alive(self) -> int:
        """Threads that were not seen to end."""
        return len(self._threads)

    def _wake(self, tid: int) -> Iterator[Record]:
        lines = self._waiting.pop(tid, deque())
        self._waiting_lines -= len(lines)
        while lines:
            thread = self._threads.get(tid)
            if thread is None:  # it exited and the number was used again
                self._waiting[tid] = lines
                self._waiting_lines += len(lines)
                return
            yield from self._line(thread, lines.popleft())

    def _boot(self, wall_ns: int) -> int:
        return max(0, wall_ns - self._offset)

    def _line(self, thread: _Thread, line: Line) -> Iterator[Record]:
        body = line.body
        if body.startswith((b"---", b"[ Process")):
            if match := _PERSONALITY.match(body):
                thread.process.compat = match[1] == b"32"
            return
        if body.startswith(b"+++"):
            yield from self._end(thread, line)
            return
        name = text.call_name(body)
        at = line.wall_ns
        second = text.resumed(body)
        if second is not None:
            half, thread.half = thread.half, None
            if half is None:
                self._unread(name)
                return
            name, first, at = half
            body = first + second
        first_half = text.unfinished(body)
        if first_half is not None:
            thread.half = (name, first_half, at)
            return
        parsed = text.read_call(name, body)
        if parsed is None:
            self._unread(name)
            return
        yield from self._call(thread, name, *parsed, at)

    def _unread(self, name: str) -> None:
        kind = _KINDS.get(name)
        self.unreadable[kind.name.lower() if kind else "line"] += 1

    def _call(
        self, thread: _Thread, name: str, arguments: dict[str, bytes], result: Result, at: int
    ) -> Iterator[Record]:
        process = thread.process
        base, _deleted = text.read_note(arguments.get("dirfd"))
        if base is not None and arguments["dirfd"].startswith(b"AT_FDCWD"):
            process.cwd = base
        if name in ("chdir", "fchdir"):
            if result.value == 0:
                self._move(process, arguments)
            return
        if thread.superseded and name in ("execve", "execveat"):
            result = Result(0, 0, result.note, result.deleted, None)
        if result.value is None:
            return
        kind = _KINDS[name]
        if kind is Kind.FORK:
            if result.value > 0:
                yield from self._forked(process, name, arguments, result, at)
            return
        if kind is Kind.OPEN:
            record = self._open(thread, name, arguments, result, base, at)
        elif kind is Kind.EXEC:
            record = self._exec(thread, arguments, result, base, at)
        elif kind is Kind.CHANGE:
            record = change(self._make, thread.process, thread.tid, name, arguments, result, at)
        else:
            record = self._connect(thread, arguments, result, at)
        if record is None:
            self._unread(name)
            return
        self.delivered[kind.name.lower()] += 1
        yield record

    def _make(self, kind: Kind, process: Process, tid: int, at: int, **fields: object) -> Record:
        return Record(
            kind,
            time_ns=self._boot(at), pid=process.pid, tid=tid, ppid=process.ppid, start_ns=process.start_ns,
            parent_start_ns=process.parent_start_ns, uid=process.uid, gid=process.gid, comm=process.comm,
            **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    def _move(self, process: Process, arguments: dict[str, bytes]) -> None:
        if "fd" in arguments:
            note, _deleted = text.read_note(arguments["fd"])
            process.cwd = note or process.cwd
        elif path := text.read_path(arguments["path"]).data:
            # Only until the next call names the directory as the kernel sees it (symbolic links).
            process.cwd = os.path.normpath(os.path.join(process.cwd or b"/", path))  # noqa: PTH118

    def _open(
        self, thread: _Thread, name: str, arguments: dict[str, bytes], result: Result, base: bytes | None, at: int
    ) -> Record | None:
        process = thread.process
        given = text.read_path(arguments["path"])
        flags = Flag.TRUNCATED if given.cut else Flag(0)
        if process.compat:
            flags |= Flag.COMPAT32
        if result.deleted:
            flags |= Flag.DELETED
        if not result.error and result.note is None:
            flags |= Flag.UNRESOLVED
        mode = arguments.get("mode")
        how = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if name == "creat" else text.read_flags(arguments.get("flags"))
        dirfd = text.descriptor(arguments.get("dirfd")) & 0xFFFF_FFFF_FFFF_FFFF
        relative = given.data is not None and not given.data.startswith(b"/")
        return self._make(
            Kind.OPEN, process, thread.tid, at, error=result.error, flags=flags,
            args=(dirfd, how, int(mode, 8) if mode and len(mode) < 12 else 0, 0, 0, _NUMBERS.get(name, 0)),
            given=given.data, resolved=None if result.error else result.note,
            cwd=(base or process.cwd) if relative and result.error else None,
        )  # fmt: skip

    def _exec(
        self, thread: _Thread, arguments: dict[str, bytes], result: Result, base: bytes | None, at: int
    ) -> Record | None:
        process = thread.process
        given = text.read_path(arguments["path"])
        argv, cut = text.read_argv(arguments["argv"])
        argc = len(argv or ())
        kept = _within(argv, _MAX_ARGV) if argv is not None else None
        flags = Flag.TRUNCATED if cut or given.cut or (kept != argv) else Flag(0)
        resolved = None
        if not result.error:
            if given.data == b"" and base is not None:
                resolved = base
            else:
                flags |= Flag.UNRESOLVED
            process.comm = ((resolved or given.data or b"").rpartition(b"/")[2])[:15]
        tid, before = thread.tid, thread.superseded or thread.tid
        thread.superseded = 0
        return self._make(
            Kind.EXEC, process, tid, at, error=result.error, flags=flags, args=(0, 0, 0, argc, before, 0),
            given=given.data, argv=kept, resolved=resolved, cwd=process.cwd,
        )  # fmt: skip

    def _connect(self, thread: _Thread, arguments: dict[str, bytes], result: Result, at: int) -> Record | None:
        length = int(arguments["len"]) if len(arguments["len"]) < 12 else -1
        family, port, address = text.read_address(arguments["addr"], length)
        protocol, kind = text.read_socket(arguments["fd"])
        fd = text.descriptor(arguments["fd"]) & 0xFFFF_FFFF_FFFF_FFFF
        return self._make(
            Kind.CONNECT, thread.process, thread.tid, at, error=result.error,
            args=(family, port, protocol, fd, kind, 0), addr=address,
        )  # fmt: skip

    def _forked(
        self, process: Process, name: str, arguments: dict[str, bytes], result: Result, at: int
    ) -> Iterator[Record]:
        flags = text.clone_flags(arguments["clone"]) if "clone" in arguments else signal.SIGCHLD
        if name == "vfork":
            flags |= text.CLONE_VFORK
        tid = result.host_pid or (None if self._nested else result.value)
        if tid is not None and tid > _MAX_PID:
            tid = None
        if tid is None:  # strace could not translate the number: the oldest thread nobody has claimed
            tid = next(iter(self._waiting), None)
        if tid is None:
            self._unclaimed.append((process, flags, at))
            return
        yield self._fork(process, tid, flags, at)
        yield from self._wake(tid)

    def _fork(self, parent: Process, tid: int, flags: int, at: int) -> Record:
        started = self._boot(at)
        thread = bool(flags & text.CLONE_THREAD)
        if thread:
            child = parent
        else:
            child = Process(
                tid,
                started,
                parent.pid,
                parent.start_ns,
                parent.uid,
                parent.gid,
                parent.cwd,
                parent.comm,
                parent.compat,
            )
        child.threads.add(tid)
        self._threads[tid] = _Thread(tid, child)
        self.delivered["fork"] += 1
        return self._make(
            Kind.FORK, parent, parent.pid, at, flags=Flag.THREAD if thread else Flag(0),
            args=(child.pid, tid, child.start_ns, flags, 0, 0),
        )  # fmt: skip

    def _end(self, thread: _Thread, line: Line) -> Iterator[Record]:
        process = thread.process
        if match := _SUPERSEDED.match(line.body):
            # strace goes on under the leader's number; the execve that thread began is resumed there.
            other = self._threads.pop(int(match[1]), None)
            if other is not None and other.process is process:
                thread.half, thread.superseded = other.half, other.tid
            process.threads = {thread.tid}
            return
        status = number = core = 0
        if match := _EXITED.match(line.body):
            status = int(match[1])
        elif match := _KILLED.match(line.body):
            number = getattr(signal, match[1].decode("ascii", "replace"), 0)
            core = 1 if match[2] else 0
        else:
            self.unreadable["exit"] += 1
            return
        process.threads.discard(thread.tid)
        self._threads.pop(thread.tid, None)
        self.delivered["exit"] += 1
        yield self._make(
            Kind.EXIT, process, thread.tid, line.wall_ns, flags=Flag.THREAD if process.threads else Flag(0),
            args=(status, int(number), core, 0, 0, 0),
        )  # fmt: skip


def _within(argv: tuple[bytes, ...], limit: int) -> tuple[bytes, ...]:
    """As much of argv as the layout has room for (a witness's record is at most `MAX_RECORD`)."""
    assert limit < MAX_RECORD
    kept = []
    for argument in argv:
        if limit <= 0:
            break
        kept.append(argument[: limit - 1])
        limit -= len(argument) + 1
    return tuple(kept)
