"""Rings made ahead of time.

Putting a ring into the kernel's map of rings, and taking it out, waits for an RCU grace period: some 15 ms, in every
box's way. So a box borrows a ring that lies in the map already, under a slot number; ``struct box`` names the slot. A
ring that comes back is empty and serves the next box. Its byte count goes on; a box remembers where it began.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_tracerd import bpfsys
from caisson_tracerd.bpfsys import Map, Ring
from caisson_tracerd.errors import BpfError

READY: Final = 2
"""Rings of the default size that wait for a box."""
KEEP: Final = 8
_PIN: Final = re.compile(r"ring_(\d+)_(\d+)")


@dataclass(frozen=True, slots=True)
class Slot:
    """A ring in the kernel's map."""

    number: int
    ring: Ring


class RingPool:
    """Free rings, and the making of more. Lives in one event loop; only `_make` and `_release` run in threads."""

    def __init__(self, rings: Map, pins: Path, default_bytes: int) -> None:
        self._rings = rings
        self._pins = pins
        self._default_bytes = default_bytes
        self._free: list[Slot] = []
        self._found: dict[int, Slot] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 1
        for path in pins.iterdir():
            match = _PIN.fullmatch(path.name)
            if match:
                number, size = int(match[1]), int(match[2])
                self._found[number] = Slot(number, Ring(bpfsys.pinned(path), size))
                self._next = max(self._next, number + 1)

    def claim(self, number: int) -> Slot | None:
        """The ring of a box that an earlier daemon made."""
        return self._found.pop(number, None)

    def settle(self) -> None:
        """Every box has claimed its ring: the rest is free."""
        for slot in self._found.values():
            self.give_back(slot)
        self._found.clear()
        self._in_background(self._refill())

    async def take(self, size: int) -> Slot:
        """An empty ring of this size. BpfError when the kernel has no memory for it."""
        slot = self._free.pop() if size == self._default_bytes and self._free else None
        if slot is None:
            slot = await self._made(size)
        if size == self._default_bytes:
            self._in_background(self._refill())
        return slot

    def give_back(self, slot: Slot) -> None:
        """Nothing writes to it any more; what it still holds is of no interest."""
        slot.ring.advance(slot.ring.used)
        slot.ring.rest()
        if slot.ring.size == self._default_bytes and len(self._free) < KEEP:
            self._free.append(slot)
        else:
            self._in_background(asyncio.to_thread(self._release, slot))

    async def close(self) -> None:
        """Wait for what is under way; rings and pins stay."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self._free:
            slot.ring.close()
        self._free.clear()

    async def _made(self, size: int) -> Slot:
        number, self._next = self._next, self._next + 1
        return await asyncio.to_thread(self._make, number, size)

    async def _refill(self) -> None:
        while len(self._free) < READY:
            try:
                self._free.append(await self._made(self._default_bytes))
            except BpfError:
                return  # the box that needs one will say so

    def _make(self, number: int, size: int) -> Slot:
        descriptor = bpfsys.create_ring(size)
        ring = Ring(descriptor, size)
        try:
            bpfsys.pin(descriptor, self._pins / f"ring_{number}_{size}")
            self._rings.put(number, struct.pack("I", descriptor))
        except BpfError:
            self._release(Slot(number, ring))
            raise
        return Slot(number, ring)

    def _release(self, slot: Slot) -> None:
        self._rings.delete(slot.number)
        (self._pins / f"ring_{slot.number}_{slot.ring.size}").unlink(missing_ok=True)
        slot.ring.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
