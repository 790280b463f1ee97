"""A folder of its own for every watch, named after the process that owns it, so that a killed one's can be told."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "caisson-watch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Private to this user, gone afterwards. Removes what killed runners of this user left."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX + owner() + "-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def sweep() -> None:
    """Removes folders in the temporary directory whose owner, in this pid namespace, is gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}r*"):
        with suppress(OSError):
            if owner_is_gone(left.name.removeprefix(_PREFIX)) and left.lstat().st_uid == os.getuid():
                end_strays(left)
                shutil.rmtree(left, ignore_errors=True)


def end_strays(folder: Path) -> None:
    """Ends this user's processes that were told to write into a watch's folder, once that watch is over.

    strace's own child stops itself before its first exec; when strace is killed just then, nobody else ends it.
    """
    told = b"\0-o\0" + os.fsencode(folder) + b"/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if told in (process / "cmdline").read_bytes() and process.stat().st_uid == os.getuid():
                os.kill(int(process.name), signal.SIGKILL)


def owner() -> str:
    """This process as it stands in names: pid namespace, pid and start time."""
    return f"r{pid_namespace():x}-{os.getpid():x}-{start_ticks(os.getpid()):x}"


def owner_is_gone(name: str) -> bool:
    """Whether a name begins with an owner that has ended. Of another pid namespace nobody knows: False."""
    words = name.split("-")
    try:
        namespace, pid, ticks = (int(word, 16) for word in (words[0].removeprefix("r"), *words[1:3]))
    except (ValueError, IndexError):
        return False
    return name.startswith("r") and namespace == pid_namespace() and start_ticks(pid) != ticks


def start_ticks(pid: int) -> int:
    """Start time in clock ticks since boot; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def pid_namespace() -> int:
    """The inode that tells our pid namespace from others."""
    return Path("/proc/self/ns/pid").stat().st_ino
