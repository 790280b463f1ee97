"""The interface every witness has, and the values that cross it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from caisson_proto.record import Record, decode_chunks

from caisson_runner.witness.coverage import Coverage

CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What the box's cgroup allows, when the witness makes the cgroup. Zero is no limit."""

    memory_bytes: int = 0
    pids: int = 0
    cpu_millis: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a witness hands over. The file belongs to the watch and goes with it: copy it before."""

    events_path: Path
    coverage: dict[str, Any]
    detail: Coverage

    def records(self) -> Iterator[Record]:
        """The records, one at a time, in bounded memory."""
        return read_events(self.events_path)


class Watch(Protocol):
    """One box being watched. ``wrap`` is an argv prefix for the launcher, outside the box; () for none."""

    @property
    def cgroup(self) -> Path | None:
        """The box's cgroup when the witness made it; the engine freezes and kills through it."""
        ...

    @property
    def wrap(self) -> tuple[str, ...]: ...

    def wrap_exec(self) -> tuple[str, ...]:
        """The prefix for one more launch into the same box; call it anew for every launch."""
        ...

    async def admit(self, pid: int) -> None:
        """Takes in the process that waits at the gate. From its next execve on everything is in the record."""
        ...

    async def seal(self) -> Evidence:
        """Ends the record. The box should be frozen or over."""
        ...


class Witness(Protocol):
    """``reason`` is a sentence for a person: why this one."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def watch(self, box_id: str, limits: Limits = ...) -> AbstractAsyncContextManager[Watch]: ...


def read_events(path: Path) -> Iterator[Record]:
    """Records of a file in canonical form."""

    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    return decode_chunks(chunks())


def boot_wall_ns() -> int:
    """Wall-clock time minus CLOCK_BOOTTIME: the one anchor between the two."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    wall = time.time_ns()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return wall - (before + after) // 2
