"""Every box of every caller, and the rules about them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from caisson_tracerd import missed, process
from caisson_tracerd.attach import Target
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
from caisson_tracerd.lease import Leases
from caisson_tracerd.ledger import Observer, Silent
from caisson_tracerd.levels import Levels
from caisson_tracerd.log import LOG, Priority
from caisson_tracerd.lossless import RING_BYTES as lossless_ring
from caisson_tracerd.lossless import Brakes, Held, thaw_level
from caisson_tracerd.rings import RingPool

DEFAULT_RING_BYTES: Final = 4 << 20
MIN_RING_BYTES: Final = 1 << 16
MAX_RING_BYTES: Final = 1 << 26
SLICE_BYTES: Final = 1 << 20
"""What one box may take of the daemon before the others have their turn."""
HOUSEKEEPING_S: Final = 1.0
LOST: Final = "Its cgroup was removed by somebody else; nothing is recorded after that."
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
        self._levels = Levels(layout.pins / "map_levels", layout.box_level)
        self._pool = RingPool(self._rings, layout.pins / "boxes_rings", self._ring_bytes)
        self._boxes: dict[tuple[int, str], Box] = {}
        self._by_ring: dict[int, Box] = {}
        # weak: a lock lives while somebody holds or awaits it
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._drainer = Drainer(self._drain)
        self._brakes = Brakes(self._braked)
        self._by_slot: dict[int, Box] = {}
        self._leases = Leases(self._owner_ended)
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping = asyncio.get_running_loop().call_later(HOUSEKEEPING_S, self._keep_house)
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
            else:
                problems.append(f"box {folder.name} did not survive and was dropped")
        self._pool.settle()
        self._clear_strays()
        self._levels.set({box.note.level for box in self._attached()})
        return problems

    async def settle(self) -> list[str]:
        """After `adopt_all`: brakes for lossless boxes, leases for all; returns one line for each that has none."""
        problems = []
        for box in self.all():
            if box.note.owner is not None:
                self._leases.watch((box.note.uid, box.note.id), box.note.owner)
            if box.slot is None:
                continue
            if box.note.lossless:
                try:
                    await self._arm(box)
                except (TracerdError, OSError) as problem:
                    problems.append(f"box {box.note.id} stands still: {problem}")
            self._drainer.at_once(box.slot.ring.descriptor)
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

    @property
    def layout(self) -> Layout:
        return self._layout

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

    async def create(
        self,
        uid: int,
        box_id: str,
        limits: Limits,
        ring_bytes: int,
        lossless: bool = False,
        owner: tuple[int, int] | None = None,
        looks: bool = False,
    ) -> tuple[Box, tuple[str, ...]]:
        """A cgroup and a ring for a new box; with the limits nobody can enforce here.

        ``owner`` is what `lease.checked` returned; ``looks``: stat, access, readlink and their like are recorded too.
        """
        default = max(self._ring_bytes, lossless_ring) if lossless else self._ring_bytes
        size = self._checked(uid, box_id, ring_bytes, default)
        async with self._lock(uid, box_id):
            self._has_room(uid, box_id)
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
                    box_id, uid, self._boot_id, str(cgroup.path), cgroup.id, size, slot.number, slot.ring.consumed,
                    lossless=lossless, owner=owner, looks=looks, missed=missed.total(self._layout.pins),
                )  # fmt: skip
                box = Box.create(note, self._layout.boxes_dir / str(uid) / box_id, self._map, slot)
            except BaseException:
                cgroup.remove()
                self._pool.give_back(slot)
                raise
            self._keep(box)
            self.observer.created(box)
            if lossless:
                try:
                    await self._arm(box)
                except BaseException:
                    await self._remove(box)
                    raise
            if owner is not None:
                self._leases.watch((uid, box_id), owner)
            return box, cgroup.missing

    @staticmethod
    def _checked(uid: int, box_id: str, ring_bytes: int, default: int) -> int:
        """The size of a new box's ring."""
        if not _ID.fullmatch(box_id):
            raise UsageError(f"box id {box_id[:80]!r} is not of the form [a-z0-9-]{{1,64}}")
        size = checked_ring_bytes(ring_bytes) if ring_bytes else default
        if uid and size > MAX_RING_BYTES_OF_USER:
            raise TooMany(f"ring of {size} bytes: a plain user may have {MAX_RING_BYTES_OF_USER}")
        return size

    def _has_room(self, uid: int, box_id: str) -> None:
        if (uid, box_id) in self._boxes:
            raise BoxExists(f"you have a box {box_id!r} already; drop it or take another name")
        if len(self._boxes) >= MAX_BOXES or (uid and len(self.of(uid)) >= MAX_BOXES_OF_USER):
            raise TooMany("there are too many boxes; drop some")

    async def attach(
        self, uid: int, box_id: str, target: Target, ring_bytes: int, owner: tuple[int, int] | None = None
    ) -> Box:
        """A ring for a cgroup that exists and is not ours. From the return on everything in it is recorded."""
        size = self._checked(uid, box_id, ring_bytes, self._ring_bytes)
        async with self._lock(uid, box_id):
            self._has_room(uid, box_id)
            attached = self._attached()
            for place in (Path(other.note.cgroup) for other in attached):
                if place.is_relative_to(target.path) or target.path.is_relative_to(place):
                    raise BoxExists(f"cgroup {target.path} is witnessed already, by a box at {place}; drop that first")
            slot = await self._pool.take(size)
            try:
                self._levels.set({*(other.note.level for other in attached), target.level})
                cgroup = Cgroup.open(target.path)
                note = Note(
                    box_id, uid, self._boot_id, str(cgroup.path), cgroup.id, size, slot.number, slot.ring.consumed,
                    level=target.level, owner=owner, missed=missed.total(self._layout.pins),
                )  # fmt: skip
                box = Box.create(note, self._layout.boxes_dir / str(uid) / box_id, self._map, slot)
            except BaseException:
                self._pool.give_back(slot)
                raise
            self._keep(box)
            if owner is not None:
                self._leases.watch((uid, box_id), owner)
            self.observer.created(box)
            return box

    def _attached(self) -> list[Box]:
        """Boxes that somebody else's containers are, and that record."""
        return [box for box in self._boxes.values() if box.note.level and not box.note.sealed]

    async def admit(self, uid: int, box_id: str, pid: int, start_ticks: int = 0) -> int:
        """Move the caller's waiting process in; returns its start time in ns since boot."""
        async with self._lock(uid, box_id):
            box = self._open(uid, box_id)
            with process.held(pid) as found:
                if uid and found.uids != {uid}:
                    raise NotYours(f"process {pid} is not yours (uid {uid}); admit your own")
                if start_ticks and found.start_ticks != start_ticks:
                    raise UsageError(f"process {pid} is another than yours was: it started at another time")
                if box.note.level:
                    raise BoxState(f"box {box_id} is a container of somebody else's; nothing is moved into it")
                if found.in_cgroup_below(f"{box.below_root}/"):
                    return found.start_ns  # put there by whoever made a child of the box's cgroup (a container's)
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
            if box.lost:  # nothing of it runs: a container has ended, or somebody removed our cgroup
                self._mark_lost(box)
                self._close(box)
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
                self._close(box)
            finally:
                if thaw:
                    cgroup.thaw()
            return box

    def _close(self, box: Box) -> None:
        count = missed.total(self._layout.pins) - box.note.missed
        if count > 0:
            box.mark(missed.sentence(count))
        box.seal()
        self._release_ring(box)
        self._levels.set({other.note.level for other in self._attached()})
        self.observer.sealed(box)

    async def drop(self, uid: int, box_id: str) -> None:
        """Kill and remove everything of a box. Dropping what is not there is done already."""
        async with self._lock(uid, box_id):
            box = self._boxes.get((uid, box_id))
            if box is not None:
                await self._remove(box)

    async def _remove(self, box: Box) -> None:
        """What stands at the box's place is ours to remove, also when somebody put it there anew.

        A container that was attached is not ours: it runs on.
        """
        if not box.note.level:
            cgroup = Cgroup(Path(box.note.cgroup), 0)
            with suppress(CgroupError):
                cgroup = Cgroup.open(cgroup.path)
            cgroup.kill()
            await asyncio.to_thread(cgroup.remove)
        key = box.note.uid, box.note.id
        self.observer.dropped(box)
        self._leases.forget(key)
        self._boxes.pop(key, None)
        self._release_ring(box)
        box.forget()
        if box.note.level:
            self._levels.set({other.note.level for other in self._attached()})

    async def drop_all(self) -> None:
        for uid, box_id in list(self._boxes):
            await self.drop(uid, box_id)

    async def close(self) -> None:
        """Leave the boxes to the kernel and the next daemon."""
        self._keeping.cancel()
        self._leases.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._brakes.close()
        self._drainer.close()
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        await self._pool.close()
        self._map.close()
        self._rings.close()
        self._levels.close()

    def _open(self, uid: int, box_id: str) -> Box:
        box = self.get(uid, box_id)
        if box.note.sealed:
            raise BoxState(f"box {box_id} is sealed; nothing can enter it")
        return box

    def _keep(self, box: Box) -> None:
        self._boxes[box.note.uid, box.note.id] = box
        if box.slot is not None:
            self._by_ring[box.slot.ring.descriptor] = box
            self._by_slot[box.slot.number] = box
            self._drainer.add(box.slot.ring.descriptor)

    async def _arm(self, box: Box) -> None:
        """Lossless from here on."""
        assert box.slot is not None
        box.held = Held(Path(box.note.cgroup), box.folder)
        await self._brakes.add(box.slot.number, box.held, box.slot.ring.descriptor, box.slot.ring.size)

    def _braked(self, slot: int) -> None:
        """The brake has frozen a box: drain it now."""
        box = self._by_slot.get(slot)
        if box is not None and box.slot is not None:
            self._drainer.at_once(box.slot.ring.descriptor)

    def _owner_ended(self, key: tuple[int, str]) -> None:
        if key in self._boxes:
            LOG.say(Priority.NOTICE, "box is dropped: its owner has ended", uid=key[0], box=key[1])
            self._background(self.drop(*key))

    def _keep_house(self) -> None:
        """Boxes whose cgroup somebody removed end here, in a clear state."""
        for box in self.all():
            if not box.note.sealed and box.lost:
                self._background(self._seal_lost(box))
        self._keeping = asyncio.get_running_loop().call_later(HOUSEKEEPING_S, self._keep_house)

    async def _seal_lost(self, box: Box) -> None:
        async with self._lock(box.note.uid, box.note.id):
            if box.note.sealed or not box.lost or self._boxes.get((box.note.uid, box.note.id)) is not box:
                return
            self._mark_lost(box)
            with suppress(TracerdError, OSError):  # tried again
                self._close(box)

    def _mark_lost(self, box: Box) -> None:
        """The end of an attached container is in the order of things; that of our own cgroup is not."""
        if not box.note.level and box.mark(LOST):
            LOG.say(Priority.WARNING, "cgroup was removed under a box", uid=box.note.uid, box=box.note.id)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            LOG.say(Priority.ERROR, "a box could not be cleared away", reason=problem)

    def _release_ring(self, box: Box) -> None:
        """The box has left the kernel; its ring serves another."""
        if box.slot is not None:
            self._drainer.remove(box.slot.ring.descriptor)
            self._by_ring.pop(box.slot.ring.descriptor, None)
            self._by_slot.pop(box.slot.number, None)
            self._brakes.remove(box.slot.number)
            self._pool.give_back(box.slot)
            box.slot = None

    def _drain(self, descriptor: int) -> bool:
        """One slice; whether there is more."""
        box = self._by_ring[descriptor]
        assert box.slot is not None
        began = time.monotonic()
        try:
            count = box.drain(SLICE_BYTES)
        except OSError as problem:
            # The records stay in the ring; when it overflows, the kernel counts what is lost, or the box stands still.
            if box.mark(f"The journal could not be written for some time: {problem.strerror}."):
                self.observer.journal_failed(box, problem)
            return False
        self.observer.drained(box, count, time.monotonic() - began)
        if not count:
            box.slot.ring.rest()
        if box.held is not None and box.held.engaged and box.slot.ring.used <= thaw_level(box.slot.ring.size):
            self._brakes.thaw(box.slot.number)
        return count >= SLICE_BYTES

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
