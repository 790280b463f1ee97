"""Where everything lies: sockets, pins, journals, sources."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_tracerd import depth
from caisson_tracerd.cgroup import v2_root
from caisson_tracerd.errors import TracerdError, UsageError

RUN_DIR: Final = Path("/run/caisson")
STATE_DIR: Final = Path("/var/lib/caisson/tracerd")
CGROUP_PARENT: Final = "caisson"
_SYSTEM_BPFFS: Final = Path("/sys/fs/bpf")
_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Layout:
    """The daemon's places. Two daemons with different run folders and cgroup parents do not meet."""

    run_dir: Path = RUN_DIR
    state_dir: Path = STATE_DIR
    cgroup_parent: str = CGROUP_PARENT

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.cgroup_parent):
            raise UsageError(f"cgroup parent {self.cgroup_parent!r} is not one plain name ([A-Za-z0-9_-])")

    @property
    def manifest(self) -> Path:
        return self.run_dir / "manifest.json"

    @property
    def lock(self) -> Path:
        return self.run_dir / "tracerd.lock"

    @property
    def own_bpffs(self) -> Path:
        """Mounted by us where the system mounts none."""
        return self.run_dir / "bpf"

    @property
    def pins(self) -> Path:
        """The folder of our pins, in whichever BPF file system there is."""
        if not is_bpffs(self.own_bpffs) and is_bpffs(_SYSTEM_BPFFS):
            tail = hashlib.sha256(bytes(self.run_dir)).hexdigest()[:8]
            return _SYSTEM_BPFFS / ("caisson" if self.run_dir == RUN_DIR else f"caisson-{tail}")
        return self.own_bpffs / "caisson"

    @property
    def boxes_dir(self) -> Path:
        return self.state_dir / "boxes"

    def socket(self, uid: int) -> Path:
        return self.run_dir / str(uid) / "tracerd.sock"

    def user_parent(self, uid: int) -> str:
        """Cgroup parent of a user's boxes; the dot keeps other sweeps away from it."""
        return f"{self.cgroup_parent}/user.{uid}"

    @property
    def box_level(self) -> int:
        """Depth of a box's cgroup below the kernel's own root."""
        root = v2_root()
        deeper = depth.of_mount(root) if root is not None else None
        return 3 + (deeper if deeper is not None else _mount_depth())


def is_bpffs(path: Path) -> bool:
    """Whether a BPF file system is mounted exactly there."""
    return any(point == str(path) and kind == "bpf" for point, kind, _ in _mountinfo())


def _mountinfo() -> list[tuple[str, str, str]]:
    """(mount point, type, root within the file system)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        found.append((fields[4], right.split(" ")[0], fields[3]))
    return found


def _mount_depth() -> int:
    """What the mount says of the same, where the kernel does not tell: right outside cgroup namespaces."""
    root = next((root for _, kind, root in _mountinfo() if kind == "cgroup2"), "/")
    return len([part for part in root.split("/") if part])


def sources() -> Path:
    """The folder with the BPF sources: beside the checkout, or inside the installed package."""
    for folder in (_HERE / "_bpf", _HERE.parents[1] / "bpf"):
        if (folder / "witness.c").is_file():
            return folder
    raise TracerdError("the BPF sources are missing from this installation; reinstall caisson")


def loader() -> Path:
    return _HERE / "loader.py"
