"""One box as the daemon holds it: cgroup, ring, counters, journal, and the note on disk that survives a restart."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import Kind

from caisson_tracerd.bpfsys import Map
from caisson_tracerd.cgroup import Cgroup, v2_root
from caisson_tracerd.errors import BpfError, CgroupError, TracerdError
from caisson_tracerd.journal import Journal
from caisson_tracerd.lossless import Held, as_note, now_ns
from caisson_tracerd.rings import RingPool, Slot

KIND_MAX: Final = 16
RESERVE: Final = "reserve"
"""A file that gives its block to the last note when the disk is full."""
RESERVE_BYTES: Final = 1 << 14
COUNTERS: Final = struct.Struct("6Q")
_HEAD: Final = struct.Struct("3Q")  # sequence number, slot of its ring, flags
BOX_BYTES: Final = _HEAD.size + KIND_MAX * COUNTERS.size
"""Size of ``struct box`` in ``bpf/lib/maps.h``."""


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Counters of one event class. seen = delivered + dropped_ring + dropped_map + unreadable."""

    kind: str
    seen: int
    delivered: int
    dropped_ring: int
    dropped_map: int
    unreadable: int
    partial: int


@dataclass(frozen=True, slots=True)
class Note:
    """What is written to ``box.json``. ``base`` is the ring's byte count at which the box began."""

    id: str
    uid: int
    boot_id: str
    cgroup: str
    cgroup_id: int
    ring_bytes: int
    slot: int
    base: int
    sealed: bool = False
    counts: list[ClassCount] = field(default_factory=list)
    lossless: bool = False
    owner: tuple[int, int] | None = None
    """Process and start in clock ticks; when it has ended, nobody wants the box."""
    marks: list[str] = field(default_factory=list)
    """Sentences on what went wrong with the record."""
    level: int = 0
    """Of a container that was attached where it is: the depth of its cgroup; 0 for a box whose cgroup is ours."""
    freezes: dict[str, Any] | None = None
    """Of a sealed lossless box, see `lossless.as_note`."""
    looks: bool = False
    """Looks (stat, access, readlink, …) are recorded too."""
    missed: int = 0
    """Runs of the programs that the kernel had left out before the box was."""

    @property
    def flags(self) -> int:
        """Bits of ``struct box``: BOX_LOOK, BOX_ATTACHED."""
        return int(self.looks) | (2 if self.level else 0)

    def write(self, folder: Path) -> None:
        part = folder / "box.json.part"
        part.write_text(json.dumps(asdict(self)) + "\n")
        part.rename(folder / "box.json")

    @classmethod
    def read(cls, folder: Path) -> Note:
        try:
            found: dict[str, Any] = json.loads((folder / "box.json").read_text())
            found["counts"] = [ClassCount(**count) for count in found["counts"]]
            if found.get("owner") is not None:
                found["owner"] = (int(found["owner"][0]), int(found["owner"][1]))
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError) as problem:
            raise TracerdError(f"note {folder / 'box.json'} is damaged: {problem}") from problem


class Box:
    """A box that records (``slot`` set) or is sealed (``slot`` None)."""

    def __init__(self, note: Note, folder: Path, boxes: Map, slot: Slot | None) -> None:
        self.note = note
        self.folder = folder
        self.slot = slot
        self.journal = Journal(folder / "journal.bin", note.base)
        self.held: Held | None = None
        """Of a lossless box that records."""
        self.marks = list(note.marks)
        self._boxes = boxes

    @classmethod
    def create(cls, note: Note, folder: Path, boxes: Map, slot: Slot) -> Box:
        """Note first, then its place in the map: what the programs see, a later daemon knows of."""
        folder.mkdir(mode=0o700, parents=True)
        try:
            note.write(folder)
            (folder / RESERVE).write_bytes(bytes(RESERVE_BYTES))
            box = cls(note, folder, boxes, slot)
            boxes.put(note.cgroup_id, _HEAD.pack(0, slot.number, note.flags).ljust(BOX_BYTES, b"\0"))
        except (BpfError, OSError):
            remove_folder(folder)
            raise
        return box

    @classmethod
    def adopt(cls, folder: Path, boxes: Map, pool: RingPool, boot_id: str) -> Box | None:
        """A box of an earlier daemon. None (and no folder) when it did not survive, as after a reboot."""
        note = Note.read(folder)
        if note.sealed and note.boot_id == boot_id:
            box = cls(note, folder, boxes, None)
            box.journal.finish()
            return box
        there = note.level > 0 or _is_cgroup(note)  # a container may have ended; its record is whole all the same
        if not note.sealed and note.boot_id == boot_id and boxes.get(note.cgroup_id) is not None and there:
            slot = pool.claim(note.slot)
            if slot is not None:
                box = cls(note, folder, boxes, slot)
                box.journal.agree_with(slot.ring)
                return box
        remove_folder(folder)
        return None

    @property
    def cgroup(self) -> Cgroup:
        """CgroupError when it is gone, also when another has its name now."""
        found = Cgroup.open(Path(self.note.cgroup))
        if found.id != self.note.cgroup_id:
            raise CgroupError(f"cgroup {found.path} is not the box's any more: it was removed and made anew")
        return found

    @property
    def below_root(self) -> str:
        """The cgroup's path as /proc/PID/cgroup shows it."""
        root = v2_root()
        return f"/{Path(self.note.cgroup).relative_to(root)}" if root is not None else self.note.cgroup

    @property
    def lost(self) -> bool:
        """Whether somebody removed its cgroup under it."""
        return not _is_cgroup(self.note)

    def mark(self, sentence: str) -> bool:
        """Say once what went wrong; whether it was new."""
        if sentence in self.marks:
            return False
        self.marks.append(sentence)
        return True

    def drain(self, limit: int = 1 << 62) -> int:
        """Move what the kernel has committed to the journal, about ``limit`` bytes at most."""
        return self.journal.drain(self.slot.ring, limit) if self.slot is not None else 0

    def counts(self) -> list[ClassCount]:
        """The kernel's counters now, or those of the seal."""
        if self.note.sealed:
            return self.note.counts
        value = self._boxes.get(self.note.cgroup_id)
        if value is None:
            raise TracerdError(f"box {self.note.id} has lost its counters; drop it and run again")
        rows = COUNTERS.iter_unpack(value[_HEAD.size :])
        return [ClassCount(Kind(number).name.lower(), *row) for number, row in enumerate(rows) if number in list(Kind)]

    def seal(self) -> None:
        """Take the counters and leave the kernel. The cgroup must stand still or be empty.

        What cannot be stored is counted as dropped and said. OSError when not even the note can be written.
        """
        try:
            self.drain()
        except OSError as problem:
            self.mark(f"The journal could not be written: {problem.strerror}.")
        counts = self._without_left(self.counts())
        freezes = None
        if self.held is not None:
            self.held.freezes.end(now_ns())
            freezes = as_note(self.held.freezes)
        note = replace(self.note, sealed=True, counts=counts, marks=self.marks, freezes=freezes)
        try:
            note.write(self.folder)
        except OSError:
            (self.folder / RESERVE).unlink(missing_ok=True)
            note.write(self.folder)
        self._boxes.delete(self.note.cgroup_id)
        self.note = note
        self.journal.finish()

    def _without_left(self, counts: list[ClassCount]) -> list[ClassCount]:
        """What still lies in the ring was delivered to it and is lost now."""
        left = Counter(self.slot.ring.kinds()) if self.slot is not None else Counter[int]()
        if not left:
            return counts
        self.mark(f"{left.total()} records could not be stored and are counted as dropped.")
        names = {kind.name.lower(): left[kind] for kind in Kind}
        return [
            replace(one, delivered=one.delivered - lost, dropped_ring=one.dropped_ring + lost)
            for one in counts
            for lost in (min(names.get(one.kind, 0), one.delivered),)
        ]

    def forget(self) -> None:
        """Everything but cgroup and ring goes."""
        self._boxes.delete(self.note.cgroup_id)
        self.journal.close()
        remove_folder(self.folder)

    def close(self) -> None:
        """The daemon ends; pins, maps and journal stay for the next one."""
        if self.slot is not None:
            with suppress(OSError):
                self.drain(self.note.ring_bytes)  # it may be running; the rest waits in the ring
            self.slot.ring.close()
            self.slot = None
        self.journal.close()


def remove_folder(folder: Path) -> None:
    """A box's folder, and its user's when it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        pass


def _is_cgroup(note: Note) -> bool:
    try:
        return Path(note.cgroup).stat().st_ino == note.cgroup_id
    except OSError:
        return False
