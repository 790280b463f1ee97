"""One box as the daemon holds it: cgroup, ring, counters, journal, and the note on disk that survives a restart."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import Kind

from caisson_tracerd import bpfsys
from caisson_tracerd.bpfsys import Map, Ring
from caisson_tracerd.cgroup import Cgroup
from caisson_tracerd.errors import BpfError, CgroupError, TracerdError
from caisson_tracerd.journal import Journal

KIND_MAX: Final = 16
COUNTERS: Final = struct.Struct("6Q")
BOX_BYTES: Final = 16 + KIND_MAX * COUNTERS.size
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
    """What is written to ``box.json``."""

    id: str
    uid: int
    boot_id: str
    cgroup: str
    cgroup_id: int
    ring_bytes: int
    sealed: bool = False
    counts: list[ClassCount] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        part = folder / "box.json.part"
        part.write_text(json.dumps(asdict(self)) + "\n")
        part.rename(folder / "box.json")

    @classmethod
    def read(cls, folder: Path) -> Note:
        try:
            found: dict[str, Any] = json.loads((folder / "box.json").read_text())
            found["counts"] = [ClassCount(**count) for count in found["counts"]]
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError) as problem:
            raise TracerdError(f"note {folder / 'box.json'} is damaged: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Kernel:
    """The two pinned maps, and where rings are pinned."""

    boxes: Map
    rings: Map
    ring_pins: Path

    @classmethod
    def adopt(cls, pins: Path) -> Kernel:
        return cls(Map.at(pins / "map_boxes", BOX_BYTES), Map.at(pins / "map_rings", 4), pins / "boxes_rings")

    def ring_pin(self, uid: int, box_id: str) -> Path:
        return self.ring_pins / f"{uid}_{box_id}"

    def close(self) -> None:
        self.boxes.close()
        self.rings.close()


class Box:
    """A box that records (``ring`` set) or is sealed (``ring`` None)."""

    def __init__(self, note: Note, folder: Path, kernel: Kernel, ring: Ring | None) -> None:
        self.note = note
        self.folder = folder
        self.kernel = kernel
        self.ring = ring
        self.journal = Journal(folder / "journal.bin")

    @classmethod
    def create(cls, note: Note, folder: Path, kernel: Kernel) -> Box:
        """Ring first, then its place in the maps: the programs see the box when everything is there."""
        folder.mkdir(mode=0o700, parents=True)
        try:
            descriptor = bpfsys.create_ring(note.ring_bytes)
            ring = Ring(descriptor, note.ring_bytes)
            box = cls(note, folder, kernel, ring)
            bpfsys.pin(descriptor, kernel.ring_pin(note.uid, note.id))
            kernel.rings.put(note.cgroup_id, struct.pack("I", descriptor))
            kernel.boxes.put(note.cgroup_id, bytes(BOX_BYTES))
            note.write(folder)
        except (BpfError, OSError):
            forget(note, folder, kernel)
            raise
        return box

    @classmethod
    def adopt(cls, folder: Path, kernel: Kernel, boot_id: str) -> Box | None:
        """A box of an earlier daemon. None (and nothing left) when it did not survive, as after a reboot."""
        note = Note.read(folder)
        if note.sealed:
            box = cls(note, folder, kernel, None)
            box.journal.finish()
            return box
        try:
            if note.boot_id != boot_id or Cgroup.open(Path(note.cgroup)).id != note.cgroup_id:
                raise CgroupError(f"box {note.id} belongs to an earlier boot")
            ring = Ring(bpfsys.pinned(kernel.ring_pin(note.uid, note.id)), note.ring_bytes)
        except (CgroupError, BpfError):
            forget(note, folder, kernel)
            return None
        box = cls(note, folder, kernel, ring)
        box.journal.agree_with(ring)
        return box

    @property
    def cgroup(self) -> Cgroup:
        return Cgroup.open(Path(self.note.cgroup))

    def drain(self) -> int:
        """Move what the kernel has committed to the journal."""
        return self.journal.drain(self.ring) if self.ring is not None else 0

    def counts(self) -> list[ClassCount]:
        """The kernel's counters now, or those of the seal."""
        if self.note.sealed:
            return self.note.counts
        value = self.kernel.boxes.get(self.note.cgroup_id)
        if value is None:
            raise TracerdError(f"box {self.note.id} has lost its counters; drop it and run again")
        rows = COUNTERS.iter_unpack(value[16:])
        return [ClassCount(Kind(number).name.lower(), *row) for number, row in enumerate(rows) if number in list(Kind)]

    def seal(self) -> None:
        """Take the counters and leave the kernel. The cgroup must stand still or be empty."""
        self.drain()
        counts = self.counts()
        self._leave_kernel()
        note = Note(**{**asdict(self.note), "sealed": True, "counts": counts})
        note.write(self.folder)
        self.note = note
        self.journal.finish()

    def forget(self) -> None:
        """Everything but the cgroup goes."""
        self._leave_kernel()
        self.journal.close()
        forget(self.note, self.folder, self.kernel)

    def close(self) -> None:
        """The daemon ends; pins, maps and journal stay for the next one."""
        if self.ring is not None:
            self.drain()
            self.ring.close()
            self.ring = None
        self.journal.close()

    def _leave_kernel(self) -> None:
        leave_kernel(self.note, self.kernel)
        if self.ring is not None:
            self.ring.close()
            self.ring = None


def leave_kernel(note: Note, kernel: Kernel) -> None:
    """The programs no longer see the box; its ring is freed."""
    kernel.boxes.delete(note.cgroup_id)
    kernel.rings.delete(note.cgroup_id)
    kernel.ring_pin(note.uid, note.id).unlink(missing_ok=True)


def forget(note: Note, folder: Path, kernel: Kernel) -> None:
    leave_kernel(note, kernel)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        pass
