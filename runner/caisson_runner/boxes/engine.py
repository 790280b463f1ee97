"""What a box engine offers: the seam between the runner and the thing that confines.

An engine forks boxes from snapshots. A box is a set of namespaces over a private copy-on-write view of one snapshot;
commands are started in it, it can be frozen, looked at, captured and thrown away. Every engine passes the same
conformance suite (``tests/boxes``).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from caisson_runner.boxes.store import Snapshot, SnapshotSpec

Admit = Callable[[int], Awaitable[None]]
"""Called with the host pid of a process that waits at the gate inside its box, before its first ``execve``."""

Network = Literal["none", "gate"]
"""``none``: `lo` and nothing that answers on it. ``gate``: the same until `listeners.listen` was called for the box."""

DEFAULT_ENV: Mapping[str, str] = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TMPDIR": "/tmp",  # noqa: S108 - the box's own
    "USER": "root",
}


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """What one box may use. Zero means no limit of this kind."""

    memory_bytes: int = 2 << 30
    pids: int = 256
    cpu_millis: int = 0
    disk_bytes: int = 1 << 30
    inodes: int = 200_000
    output_bytes: int = 16 << 20
    """Of stdout and stderr together, per command; beyond it the box's processes are killed."""
    wall_s: float = 600.0
    """Per command, from the opening of its gate."""
    files: int = 1024
    """Open descriptors of one process."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A host file or folder shown read-only at ``target``. With the root engine it must be readable by everyone."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. ``env`` is added to `DEFAULT_ENV` and the snapshot's; the host's environment is not passed."""

    argv: tuple[bytes | str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    """Empty: the snapshot's working directory."""
    stdin: bytes | None = None
    wall_s: float | None = None
    """Overrides the box's limit."""
    output_bytes: int | None = None
    stdin_pipe: bool = False
    """Give `Process` streams (``stdin``, ``stdout``) instead of collecting stdout; for pipe protocols."""


class Outcome(enum.Enum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output-limit"
    MEMORY = "memory"
    PIDS = "pids"
    KILLED = "killed"
    """By us: `Process.kill`, `Box.kill` or `Box.drop`."""
    LOST = "lost"
    """The holder died; nobody knows how the command ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a command. ``exit_code`` 127 or 126 with ``detail`` also stands for a program that could not start."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    wall_s: float
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with code 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Change:
    """One path of a box that differs from its snapshot. ``path`` has no leading slash."""

    path: bytes
    how: Literal["added", "changed", "removed"]
    kind: str
    """``file``, ``dir``, ``link``, ``fifo``; of what was there when it is removed."""
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class Capture:
    """A box's final state on disk: a zstd tar of its writable layer."""

    path: Path
    digest: str
    """sha256 over paths, types, modes, sizes, contents, link targets, whiteouts, opaque marks; no times or owners."""
    entries: int
    size: int
    """Of file contents, bytes."""
    changes: tuple[Change, ...]


class Process(Protocol):
    """A command in a box."""

    pid: int
    """Host pid of the in-box process."""
    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader | None

    async def wait(self) -> Finished: ...
    async def kill(self) -> None:
        """End every process of the box with SIGKILL; the outcome is KILLED."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        ...


class Box(Protocol):
    """One fork of a snapshot."""

    id: str
    snapshot: Snapshot
    network: Network

    async def start(self, command: Command, *, admit: Admit | None = None, wrap: Sequence[str] = ()) -> Process: ...
    async def exec(self, command: Command, *, admit: Admit | None = None, wrap: Sequence[str] = ()) -> Process: ...
    async def put(self, path: str, data: bytes, mode: int = 0o644) -> None: ...
    async def get(self, path: str, limit: int = 1 << 20) -> bytes: ...
    async def freeze(self) -> None: ...
    async def thaw(self) -> None: ...
    async def kill(self) -> None: ...
    async def processes(self) -> list[tuple[int, bytes]]: ...
    async def diff(self) -> list[Change]: ...
    async def capture(self, target: Path) -> Capture: ...
    async def drop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """A way out for the box that builds a snapshot."""

    binds: Sequence[Bind]
    env: Mapping[str, str]
    open: Callable[[Box], AbstractAsyncContextManager[object]]
    """Entered when the box stands, left before it is captured."""


class Engine(Protocol):
    """Makes snapshots and forks boxes from them."""

    name: str

    async def snapshot(self, spec: SnapshotSpec, outside: Outside | None = None) -> Snapshot: ...

    def fork(
        self,
        snapshot: Snapshot,
        *,
        box_id: str | None = None,
        limits: BoxLimits = ...,
        state: Path | bytes | None = None,
        restore: Sequence[str] = (),
        binds: Sequence[Bind] = (),
        network: Network = "none",
        cgroup: Path | None = None,
    ) -> AbstractAsyncContextManager[Box]: ...
