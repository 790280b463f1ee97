"""Lossless boxes, the daemon's side: the brake process, and when a box stood still for its record.

The brake (`brake.py`) freezes; only the daemon thaws, when it has drained. See ``docs/decisions/0104-lossless.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_tracerd import brake
from caisson_tracerd.cgroup import thaw_unless_held
from caisson_tracerd.errors import TracerdError
from caisson_tracerd.log import LOG, Priority

RING_BYTES: Final = 1 << 24
"""Ring of a lossless box unless it asks for another: half of it is what may come between mark and freeze."""
LOW: Final = 8
"""Thaw when no more than this part of the ring waits."""
_ARM_S: Final = 10.0
_GAPS: Final = 1000
_LEVELS: Final = ("without priority", "with a nice value only", "with real-time priority")


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Freezes:
    """How often and how long a box stood still. ``gaps`` holds the first thousand as (begin, end)."""

    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    peak_bytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    since_ns: int = 0

    @classmethod
    def read(cls, log: Path) -> Freezes:
        """What an earlier daemon and its brake wrote."""
        found = cls()
        with contextlib.suppress(OSError, ValueError):
            for line in log.read_text().splitlines():
                letter, *numbers = line.split()
                if letter == "F" and len(numbers) == 2:
                    found.begin(int(numbers[0]), int(numbers[1]))
                elif letter == "T" and len(numbers) == 1:
                    found.end(int(numbers[0]))
        return found

    def begin(self, at_ns: int, used: int) -> bool:
        """Whether it was not standing still already."""
        self.peak_bytes = max(self.peak_bytes, used)
        if self.since_ns:
            return False
        self.since_ns = at_ns
        return True

    def end(self, at_ns: int) -> bool:
        """Whether it was standing still."""
        if not self.since_ns:
            return False
        took = max(0, at_ns - self.since_ns)
        self.count += 1
        self.total_ns += took
        self.longest_ns = max(self.longest_ns, took)
        if len(self.gaps) < _GAPS:
            self.gaps.append((self.since_ns, at_ns))
        self.since_ns = 0
        return True


class Held:
    """A lossless box as the brake has it: freeze file, log, and the times."""

    def __init__(self, cgroup: Path, folder: Path) -> None:
        self.control = cgroup / "cgroup.freeze"
        self._path = folder / "freezes.log"
        self.freezes = Freezes.read(self._path)
        self.engaged = bool(self.freezes.since_ns)
        """Frozen for its record."""
        self.log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def freeze(self, used: int) -> None:
        """Freeze it from here, when there is no brake."""
        with contextlib.suppress(OSError):
            self.control.write_text("1")
        self.began(now_ns(), used)

    def began(self, at_ns: int, used: int) -> None:
        self.engaged = True
        if self.freezes.begin(at_ns, used):
            self._write(f"F {at_ns} {used}\n")

    def thaw(self) -> None:
        """Let it run on, unless its runner wants it to stand still too."""
        self.engaged = False
        thaw_unless_held(self.control.parent)
        at_ns = now_ns()
        if self.freezes.end(at_ns):
            self._write(f"T {at_ns}\n")

    def close(self) -> None:
        if self.log >= 0:
            os.close(self.log)
            self.log = -1

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: the times in memory are those that are sealed
            os.write(self.log, line.encode())


class Brakes:
    """The brake process, started with the first lossless box and started anew when it ends."""

    def __init__(self, frozen: Callable[[int], None]) -> None:
        self._frozen = frozen
        self._boxes: dict[int, tuple[Held, int, int]] = {}  # slot -> box, ring descriptor, ring size
        self._leaving: dict[int, Held] = {}
        self._armed: dict[int, asyncio.Future[None]] = {}
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, slot: int) -> Held | None:
        found = self._boxes.get(slot)
        return found[0] if found is not None else None

    async def add(self, slot: int, held: Held, ring: int, size: int) -> None:
        """Returns when the brake watches the ring. TracerdError when it cannot."""
        self._boxes[slot] = held, ring, size
        try:
            async with self._starting:
                if self._channel is None:
                    await self._start()
            await self._arm(slot)
        except (OSError, TimeoutError) as problem:
            self.remove(slot)
            raise TracerdError(f"the brake of lossless boxes does not work: {problem or 'no answer'}") from None

    def remove(self, slot: int) -> None:
        """The box needs no brake any more; if it stood still for its record, it runs on."""
        found = self._boxes.pop(slot, None)
        if found is None:
            return
        held = found[0]
        if held.engaged:
            held.thaw()
        if self._channel is None:
            held.close()
            return
        self._leaving[slot] = held
        self._send(b"R", slot)

    def thaw(self, slot: int) -> None:
        """It is drained. The log line of the brake begins anew."""
        self._boxes[slot][0].thaw()
        self._send(b"T", slot)

    async def close(self) -> None:
        """The daemon ends: every box stands still until the next one drains it."""
        channel, self._channel = self._channel, None
        for task in list(self._tasks):
            task.cancel()
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()
        if self._process is not None:
            await self._process.wait()
        for held, _, _ in self._boxes.values():
            held.close()
        for held in self._leaving.values():
            held.close()
        self._boxes.clear()
        self._leaving.clear()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            number = theirs.fileno()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", brake.__file__, str(number),
                pass_fds=(number,), stdin=asyncio.subprocess.DEVNULL, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)

    async def _arm(self, slot: int) -> None:
        held, ring, size = self._boxes[slot]
        assert self._channel is not None
        answer = self._armed[slot] = asyncio.get_running_loop().create_future()
        control = os.open(held.control, os.O_WRONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(self._channel, [brake.MESSAGE.pack(b"A", slot, size, 0)], [ring, control, held.log])
            await asyncio.wait_for(answer, _ARM_S)
        finally:
            os.close(control)
            self._armed.pop(slot, None)

    def _send(self, letter: bytes, slot: int) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # a brake that ends says so by its channel
                self._channel.send(brake.MESSAGE.pack(letter, slot, 0, 0))

    def _readable(self) -> None:
        assert self._channel is not None
        for _ in range(64):
            try:
                message = self._channel.recv(brake.MESSAGE.size)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if len(message) != brake.MESSAGE.size:
                self._ended()
                return
            self._told(*brake.MESSAGE.unpack(message))

    def _told(self, letter: bytes, slot: int, first: int, second: int) -> None:
        if letter == b"F" and slot in self._boxes:
            self._boxes[slot][0].began(first, second)
            self._frozen(slot)
        elif letter == b"F" and slot in self._leaving:
            thaw_unless_held(self._leaving[slot].control.parent)
        elif letter == b"A" and slot in self._armed and not self._armed[slot].done():
            self._armed[slot].set_result(None)
        elif letter == b"R" and slot in self._leaving:
            self._leaving.pop(slot).close()
        elif letter == b"P":
            priority = Priority.INFO if first == 2 else Priority.WARNING
            LOG.say(priority, f"the brake of lossless boxes runs {_LEVELS[min(first, 2)]}")

    def _ended(self) -> None:
        """The brake was killed: it froze nothing, so everything stands still until a new one watches."""
        channel, self._channel = self._channel, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()
        for held, _, _ in self._boxes.values():
            held.freeze(0)
        for held in self._leaving.values():
            thaw_unless_held(held.control.parent)
            held.close()
        self._leaving.clear()
        LOG.say(Priority.ERROR, "the brake of lossless boxes ended; they stand still until a new one watches")
        task = asyncio.create_task(self._again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self) -> None:
        if self._process is not None:
            await self._process.wait()
        async with self._starting:
            if self._channel is None and self._boxes:
                await self._start()
        for slot in list(self._boxes):
            with contextlib.suppress(TimeoutError, OSError):
                await self._arm(slot)
                self._frozen(slot)


def thaw_level(size: int) -> int:
    """Bytes in a ring of this size at or below which its box runs on."""
    return size // LOW


def as_note(freezes: Freezes) -> dict[str, Any]:
    """For ``box.json``."""
    return {
        "count": freezes.count,
        "total_ns": freezes.total_ns,
        "longest_ns": freezes.longest_ns,
        "peak_bytes": freezes.peak_bytes,
        "gaps": freezes.gaps,
    }
