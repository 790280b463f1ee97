"""The witness ``strace``: no root, no daemon, the same records.

strace runs outside the box, around the whole launch, and writes into a named pipe that the runner empties into a file
of bounded size; so a box that makes noise costs the host no disk, and strace cannot outlive its reader unnoticed.
What the launcher does before the process stands at the gate is set-up: the record begins where `admit` found the
output.
"""

from __future__ import annotations

import asyncio
import fcntl
import heapq
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_proto.record import Record, encode

from caisson_runner.witness.coverage import Counts, Coverage
from caisson_runner.witness.errors import WitnessError
from caisson_runner.witness.scratch import end_strays, scratch, start_ticks
from caisson_runner.witness.seam import Evidence, Limits, boot_wall_ns
from caisson_runner.witness.strace_lines import CALLS, read_line
from caisson_runner.witness.strace_records import Process, Reading

MAX_LOG: Final = 1 << 30
"""Bytes of strace's text kept for one launch. The rest is read, counted in lines, and thrown away."""

LIMITS: Final = (
    "Opens and connects through io_uring leave no system call and are not seen.",
    "A path given by the caller is read before the kernel reads it and can be changed in between; the resolved path "
    "is right.",
    "A child made with CLONE_UNTRACED is not followed; its watched calls fail.",
    "Descriptors passed over sockets, opened by handle or by open_tree, and datagrams without connect are not seen.",
    "An exec's resolved path and interpreter, devices and inodes are not known.",
    "Calls refused by the box's own seccomp filter are not seen.",
    "A process can notice that it is traced.",
)

_PIPE: Final = 1 << 20


def command(strace: str, output: Path) -> tuple[str, ...]:
    """The prefix: strace dies with the runner, and what it launches dies with it (``bwrap --die-with-parent``)."""
    setpriv = shutil.which("setpriv")
    dies = (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
    return (
        *dies, strace, "-f", "--seccomp-bpf", "-yy", "-v", "-s", "131072", "--quiet=attach", "--decode-pids=pidns",
        "--absolute-timestamps=format:unix,precision:ns", "-e", "trace=" + ",".join(f"?{name}" for name in CALLS),
        "-o", str(output), "--",
    )  # fmt: skip


class StraceWitness:
    name = "strace"

    def __init__(self, reason: str = "strace was asked for", *, strace: str = "strace", max_log: int = MAX_LOG) -> None:
        self.reason = reason
        self._strace = strace
        self._max_log = max_log

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits = Limits()) -> AsyncIterator[StraceWatch]:  # noqa: B008
        """Limits are the engine's affair here: this witness makes no cgroup."""
        with scratch() as folder:
            watch = StraceWatch(folder, self._strace, self.reason, self._max_log)
            try:
                yield watch
            finally:
                watch.close()
                end_strays(folder)


class StraceWatch:
    """One box; one strace for every launch into it."""

    cgroup: Path | None = None

    def __init__(self, scratch: Path, strace: str, reason: str, max_log: int) -> None:
        self._scratch = scratch
        self._strace = strace
        self._reason = reason
        self._max_log = max_log
        self._logs: list[_Log] = []
        self._offset = boot_wall_ns()
        self._sealed: Evidence | None = None

    @property
    def wrap(self) -> tuple[str, ...]:
        if not self._logs:
            return self.wrap_exec()
        return command(self._strace, self._logs[0].pipe)

    def wrap_exec(self) -> tuple[str, ...]:
        log = _Log(self._scratch, len(self._logs), self._max_log)
        self._logs.append(log)
        return command(self._strace, log.pipe)

    async def admit(self, pid: int) -> None:
        try:
            tracer = int(_status(pid)["TracerPid"])
            words = Path(f"/proc/{tracer}/cmdline").read_bytes().split(b"\0") if tracer else []
        except OSError as error:
            raise WitnessError(f"process {pid} at the gate is gone before it was admitted: start it again") from error
        log = next((log for log in self._logs if os.fsencode(log.pipe) in words), None)
        if log is None:
            raise WitnessError(f"process {pid} at the gate is not under this strace: start it behind watch.wrap")
        log.admit(pid, tracer)

    async def seal(self) -> Evidence:
        if self._sealed is None:
            for log in self._logs:
                await log.settle()
            self._sealed = await asyncio.to_thread(self._write)
        return self._sealed

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def _write(self) -> Evidence:
        events = self._scratch / "events.bin"
        logs = [log for log in self._logs if log.root is not None]
        readings = [log.reading(self._offset) for log in logs]
        with events.open("wb") as file:
            streams = [log.records(reading) for log, reading in zip(logs, readings, strict=True)]
            for record in heapq.merge(*streams, key=lambda record: record.time_ns):
                file.write(encode(record))
        delivered: Counter[str] = sum((reading.delivered for reading in readings), Counter())
        unreadable: Counter[str] = sum((reading.unreadable for reading in readings), Counter())
        lost = sum(log.lost_lines for log in logs)
        counts = {
            kind: Counts(delivered[kind] + unreadable[kind], delivered[kind], unreadable=unreadable[kind])
            for kind in {"fork", "exec", "exit", "open", "connect", "change", *unreadable}
        }
        if lost:
            counts["line"] = Counts(lost + unreadable["line"], 0, dropped_ring=lost, unreadable=unreadable["line"])
        gaps = [gap for log, reading in zip(logs, readings, strict=True) if (gap := log.gap(reading))]
        if not logs:
            gaps.append("No process was admitted.")
        coverage = Coverage(
            "strace", "ptrace", self._reason, counts, hooks=CALLS, limits=LIMITS, gaps=tuple(gaps),
            boot_wall_ns=self._offset,
        )  # fmt: skip
        return Evidence(events, coverage.as_json(), coverage)


@dataclass(frozen=True, slots=True)
class _Root:
    process: Process
    nested: bool
    offset: int


class _Log:
    """The named pipe one strace writes into, and the file its text is kept in."""

    def __init__(self, scratch: Path, number: int, limit: int) -> None:
        self.pipe = scratch / f"strace-{number}.pipe"
        self._text = scratch / f"strace-{number}.txt"
        self._limit = limit
        self._size = 0
        self.lost_lines = 0
        self.root: _Root | None = None
        self._tracer = -1  # pidfd
        os.mkfifo(self.pipe, 0o600)
        # For writing as well: then the pipe never looks closed, neither before strace opens it nor after it ends.
        self._fd = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE)
        self._file = self._text.open("wb", buffering=0)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._pump)

    def _pump(self) -> bool:
        """Empties the pipe; says whether anything came."""
        came = False
        while True:
            try:
                data = os.read(self._fd, _PIPE)
            except (BlockingIOError, InterruptedError):
                return came
            came = True
            if self._size + len(data) > self._limit or self.lost_lines:
                self.lost_lines += max(1, data.count(b"\n"))
                continue
            self._file.write(data)
            self._size += len(data)

    def admit(self, pid: int, tracer: int) -> None:
        self._pump()
        status = _status(pid)
        if self._tracer < 0:
            self._tracer = os.pidfd_open(tracer)
        ppid = int(status["PPid"])
        process = Process(
            pid, _start_ns(pid), ppid, _start_ns(ppid), int(status["Uid"].split()[0]), int(status["Gid"].split()[0]),
            _cwd(pid), _comm(pid),
        )  # fmt: skip
        self.root = _Root(process, len(status["NSpid"].split()) > 1, self._size)

    async def settle(self) -> None:
        """Waits until nothing more comes: strace writes each line before it lets its process go on."""
        quiet = 0
        while quiet < 2:
            quiet = 0 if self._pump() else quiet + 1
            await asyncio.sleep(0.01)

    def reading(self, boot_offset_ns: int) -> Reading:
        assert self.root is not None
        with self._text.open("rb") as file:
            setup = file.read(self.root.offset)
        outside = {line.tid for raw in setup.splitlines() if (line := read_line(raw))}
        return Reading([self.root.process], outside=outside, nested=self.root.nested, boot_offset_ns=boot_offset_ns)

    def records(self, reading: Reading) -> Iterator[Record]:
        assert self.root is not None
        with self._text.open("rb") as file:
            file.seek(self.root.offset)
            for raw in file:
                if raw.endswith(b"\n"):  # strace may be in the middle of one
                    yield from reading.feed(raw)
        yield from reading.finish()

    def gap(self, reading: Reading) -> str | None:
        """Says so when strace ended while processes of the box had not."""
        if reading.alive and not _pidfd_alive(self._tracer):
            return f"strace ended before {reading.alive} of the box's threads did."
        return None

    def close(self) -> None:
        """Ends what still runs: the process at the gate, then its strace. Normally the box is gone already."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        if self._tracer >= 0:
            if self.root is not None and _pidfd_alive(self._tracer):
                _kill(self.root.process)
                with suppress(OSError):
                    signal.pidfd_send_signal(self._tracer, signal.SIGKILL)
            os.close(self._tracer)
        os.close(self._fd)
        self._fd = self._tracer = -1
        self._file.close()


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {key: value.strip() for key, _colon, value in (line.partition(":") for line in lines)}


def _start_ns(pid: int) -> int:
    return start_ticks(pid) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _cwd(pid: int) -> bytes | None:
    try:
        return os.readlink(os.fsencode(f"/proc/{pid}/cwd"))  # noqa: PTH115 - bytes
    except OSError:
        return None


def _comm(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")[:15]
    except OSError:
        return b""


def _pidfd_alive(fd: int) -> bool:
    if fd < 0:
        return False
    try:
        signal.pidfd_send_signal(fd, 0)
    except OSError:
        return False
    return True


def _kill(process: Process) -> None:
    with suppress(OSError):
        fd = os.pidfd_open(process.pid)
        try:
            if _start_ns(process.pid) == process.start_ns:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
