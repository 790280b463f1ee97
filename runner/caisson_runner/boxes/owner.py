"""Which process owns a live box, told apart from a later process with the same pid; and sweeping after dead owners."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from caisson_runner.boxes.errors import RequestError
from caisson_runner.boxes.holder.tree import remove


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, or None when there is none (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def mark() -> str:
    """This process, as part of a file name."""
    return f"{_boot()}-{os.getpid()}-{start_time(os.getpid())}"


def alive(marked: str) -> bool:
    """Whether the process of a `mark` still runs."""
    try:
        boot, pid, start = marked.split("-")[:3]
        return boot == _boot() and start_time(int(pid)) == int(start)
    except ValueError:
        return False


def is_mapped(uid: int) -> bool:
    """Whether files may be given to this uid: not so for the root of a user namespace that has only itself."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= uid < inside + count:
            return True
    return False


@dataclass(frozen=True, slots=True)
class BoxRecord:
    """What the folder of a live box says."""

    id: str
    folder: Path
    mark: str
    snapshot: str
    cgroup: str

    @property
    def alive(self) -> bool:
        """Whether the runner that made the box still runs."""
        return alive(self.mark)


def write(folder: Path, snapshot: str, cgroup: str) -> None:
    """Say who owns the box whose folder this is; whole at any moment, since others read it to sweep."""
    text = json.dumps({"owner": mark(), "snapshot": snapshot, "cgroup": cgroup})
    (folder / "owner.new").write_text(text)
    (folder / "owner.new").rename(folder / "owner.json")


def claim(folder: Path, snapshot: str) -> None:
    """Make a box's folder, with its owner in it from the first moment. RequestError when there is one already."""
    work = folder.with_name(f".new-{mark()}-{folder.name}")
    work.mkdir()
    try:
        write(work, snapshot, "")
        work.rename(folder)
    except OSError as problem:
        remove(str(work))
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RequestError(f"a box {folder.name!r} exists; choose another id, or end that run") from None
        raise


def boxes(home: Path) -> list[BoxRecord]:
    """Every box folder of a store. One without a readable owner counts as ownerless."""
    found: list[BoxRecord] = []
    for folder in sorted((home / "boxes").iterdir()):
        if folder.name.startswith("."):
            continue
        try:
            fields = json.loads((folder / "owner.json").read_text())
            record = BoxRecord(folder.name, folder, fields["owner"], fields["snapshot"], fields["cgroup"])
        except (OSError, ValueError, KeyError, TypeError):
            record = BoxRecord(folder.name, folder, "", "", "")
        found.append(record)
    return found


def sweep(home: Path) -> list[str]:
    """Remove what dead runners left in a store: box folders with their cgroups, half-written layers and snapshots.

    Their processes and mounts are gone already: a holder ends with its runner. Returns the box ids.
    """
    swept: list[str] = []
    for record in boxes(home):
        if record.alive:
            continue
        if record.cgroup and Path(record.cgroup).is_dir():
            from caisson_tracerd.cgroup import Cgroup

            leftover = Cgroup.open(Path(record.cgroup))
            leftover.kill()
            leftover.remove()
        remove(str(record.folder))
        swept.append(record.id)
    for kind in ("layers", "snapshots", "boxes"):
        for folder in (home / kind).glob(".new-*"):
            if not alive(folder.name.removeprefix(".new-")):
                remove(str(folder))
        for folder in (home / kind).glob(".old-*"):
            remove(str(folder))
    return swept
