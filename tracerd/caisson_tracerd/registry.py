"""Every box of every caller, and the rules about them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from caisson_tracerd import process
from caisson_tracerd.box import BOX_BYTES, Box, Note, remove_folder
from caisson_tracerd.bpfsys import Map
from caisson_tracerd.cgroup import Cgroup, Limits, sweep, v2_root
from caisson_tracerd.drain import Drainer
from caisson_tracerd.errors import (
    BoxExists,
    BoxState,
    BoxUnknown,
    CgroupError,
    NotYours,
    TooMany,
    TracerdError,
    UsageError,
)
from caisson_tracerd.layout import Layout
from caisson_tracerd.ledger import Observer, Silent
from caisson_tracerd.rings import RingPool

DEFAULT_RING_BYTES: Final = 4 << 20
MIN_RING_BYTES: Final = 1 << 16
MAX_RING_BYTES: Final = 1 << 26
MAX_BOXES: Final = 1000
MAX_BOXES_OF_USER: Final = 64
MAX_RING_BYTES_OF_USER: Final = 1 << 24
"""Rings are kernel memory: at most 1 GiB of it for one user."""
_ID: Final = re.compile(r"[a-z0-9-]{1,64}")


class Registry:
    """Boxes by (uid, id). Lives in one event loop; a box is changed by one call at a time."""

    def __init__(self, layout: Layout, ring_bytes: int = DEFAULT_RING_BYTES) -> None:
        self._layout = layout
        self._ring_bytes = checked_ring_bytes(ring_bytes)
        self._map = Map.at(layout.pins / "map_boxes", BOX_BYTES)
        self._rings = Map.at(layout.pins / "map_rings", 4)
        self._pool = RingPool(self._rings, layout.pins / "boxes_rings", self._ring_bytes)
        self._boxes: dict[tuple[int, str], Box] = {}
        self._by_ring: dict[int, Box] = {}
        # weak: a lock lives while somebody holds or awaits it
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._drainer = Drainer(self._drain)
        self.observer: Observer = Silent()

    def adopt_all(self) -> list[str]:
        """Take over what an earlier daemon left; returns one line for each box that could not be."""
        problems = []
        for folder in sorted(self._layout.boxes_dir.glob("*/*")):
            try:
                box = Box.adopt(folder, self._map, self._pool, self._boot_id)
            except TracerdError as problem:
                remove_folder(folder)
                problems.append(str(problem))
                continue
            if box is not None:
                self._keep(box)
                box.drain()
            else:
                problems.append(f"box {folder.name} did not survive and was dropped")
        self._pool.settle()
        self._clear_strays()
        return problems

    def _clear_strays(self) -> None:
        """Cgroups and counters of boxes nobody knows: a daemon was killed while it made or dropped them."""
        known = {box.note.cgroup_id for box in self._boxes.values() if not box.note.sealed}
        for key in set(self._map.keys()) - known:
            self._map.delete(key)
        root = v2_root()
        for folder in (root / self._layout.cgroup_parent).glob("user.*") if root is not None else ():
            names = {box.note.id for box in self._boxes.values() if Path(box.note.cgroup).parent == folder}
            sweep(f"{self._layout.cgroup_parent}/{folder.name}", names.__contains__)

    def all(self) -> list[Box]:
        """Every caller's boxes."""
        return list(self._boxes.values())

    def after_each_sweep(self, call: Callable[[], None]) -> None:
        """Have something called whenever every ring has been looked at."""
        self._drainer.swept = call

    def of(self, uid: int) -> list[Box]:
        """The caller's boxes."""
        return [box for (owner, _), box in sorted(self._boxes.items()) if owner == uid]

    def get(self, uid: int, box_id: str) -> Box:
        try:
            return self._boxes[uid, box_id]
        except KeyError:
            raise BoxUnknown(f"you have no box {box_id!r}; create it first") from None

    async def create(self, uid: int, box_id: str, limits: Limits, ring_bytes: int) -> tuple[Box, tuple[str, ...]]:
        """A cgroup and a ring for a new box; with the limits nobody can enforce here."""
        if not _ID.fullmatch(box_id):
            raise UsageError(f"box id {box_id[:80]!r} is not of the form [a-z0-9-]{{1,64}}")
        size = checked_ring_bytes(ring_bytes) if ring_bytes else self._ring_bytes
        if uid and size > MAX_RING_BYTES_OF_USER:
            raise TooMany(f"ring of {size} bytes: a plain user may have {MAX_RING_BYTES_OF_USER}")
        async with self._lock(uid, box_id):
            if (uid, box_id) in self._boxes:
                raise BoxExists(f"you have a box {box_id!r} already; drop it or take another name")
            if len(self._boxes) >= MAX_BOXES or (uid and len(self.of(uid)) >= MAX_BOXES_OF_USER):
                raise TooMany("there are too many boxes; drop some")
            slot = await self._pool.take(size)
            try:
                cgroup = Cgroup.create(box_id, limits, self._layout.user_parent(uid))
            except BaseException:
                self._pool.give_back(slot)
                raise
            try:
                if uid:
                    for name in ("cgroup.freeze", "cgroup.kill"):
                        if (cgroup.path / name).exists():
                            os.chown(cgroup.path / name, uid, -1)
                note = Note(
                    box_id, uid, self._boot_id, str(cgroup.path), cgroup.id, size, slot.number, slot.ring.consumed
                )
                box = Box.create(note, self._layout.boxes_dir / str(uid) / box_id, self._map, slot)
            except BaseException:
                cgroup.remove()
                self._pool.give_back(slot)
                raise
            self._keep(box)
            self.observer.created(box)
            return box, cgroup.missing

    async def admit(self, uid: int, box_id: str, pid: int) -> int:
        """Move the caller's waiting process in; returns its start time in ns since boot."""
        async with self._lock(uid, box_id):
            box = self._open(uid, box_id)
            with process.held(pid) as found:
                if uid and found.uids != {uid}:
                    raise NotYours(f"process {pid} is not yours (uid {uid}); admit your own")
                if found.in_cgroup_below(f"/{self._layout.cgroup_parent}/"):
                    raise NotYours(f"process {pid} is in a box already")
                await asyncio.to_thread(box.cgroup.add, pid)  # waits for an RCU grace period
                return found.start_ns

    async def seal(self, uid: int, box_id: str) -> Box:
        """Drain what the kernel holds and take the counters, while the box stands still or is empty."""
        async with self._lock(uid, box_id):
            box = self.get(uid, box_id)
            if box.note.sealed:
                return box
            cgroup = box.cgroup
            thaw = False
            if cgroup.populated and not cgroup.frozen:
                try:
                    await asyncio.to_thread(cgroup.freeze)
                    thaw = True
                except CgroupError as problem:
                    raise BoxState(f"box {box_id} does not stand still ({problem}); kill it, then seal") from None
            try:
                box.seal()
                self._release_ring(box)
                self.observer.sealed(box)
            finally:
                if thaw:
                    cgroup.thaw()
            return box

    async def drop(self, uid: int, box_id: str) -> None:
        """Kill and remove everything of a box. Dropping what is not there is done already."""
        async with self._lock(uid, box_id):
            box = self._boxes.get((uid, box_id))
            if box is None:
                return
            try:
                cgroup = box.cgroup
            except CgroupError:
                pass
            else:
                cgroup.kill()
                await asyncio.to_thread(cgroup.remove)
            self.observer.dropped(box)
            del self._boxes[uid, box_id]
            box.forget()
            self._release_ring(box)

    async def drop_all(self) -> None:
        for uid, box_id in list(self._boxes):
            await self.drop(uid, box_id)

    async def close(self) -> None:
        """Leave the boxes to the kernel and the next daemon."""
        self._drainer.close()
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        await self._pool.close()
        self._map.close()
        self._rings.close()

    def _open(self, uid: int, box_id: str) -> Box:
        box = self.get(uid, box_id)
        if box.note.sealed:
            raise BoxState(f"box {box_id} is sealed; nothing can enter it")
        return box

    def _keep(self, box: Box) -> None:
        self._boxes[box.note.uid, box.note.id] = box
        if box.slot is not None:
            self._by_ring[box.slot.ring.descriptor] = box
            self._drainer.add(box.slot.ring.descriptor)

    def _release_ring(self, box: Box) -> None:
        """The box has left the kernel; its ring serves another."""
        if box.slot is not None:
            self._drainer.remove(box.slot.ring.descriptor)
            self._by_ring.pop(box.slot.ring.descriptor, None)
            self._pool.give_back(box.slot)
            box.slot = None

    def _drain(self, descriptor: int) -> None:
        box = self._by_ring[descriptor]
        began = time.monotonic()
        try:
            self.observer.drained(box, box.drain(), time.monotonic() - began)
        except OSError as problem:
            # The records stay in the ring; when it overflows, the kernel counts what is lost.
            self.observer.journal_failed(box, problem)

    def _lock(self, uid: int, box_id: str) -> asyncio.Lock:
        lock = self._locks.get((uid, box_id))
        if lock is None:
            self._locks[uid, box_id] = lock = asyncio.Lock()
        return lock


def checked_ring_bytes(size: int) -> int:
    """A ring size the kernel takes, or UsageError."""
    if size & (size - 1) or not MIN_RING_BYTES <= size <= MAX_RING_BYTES:
        raise UsageError(f"ring of {size} bytes: it must be a power of two from {MIN_RING_BYTES} to {MAX_RING_BYTES}")
    return size
