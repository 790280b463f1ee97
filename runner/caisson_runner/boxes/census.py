"""What a box holds, seen from outside: processes, their memory, a writable layer on disk."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Final

_COMMAND_LINE: Final = 4096
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def members(init: int) -> list[int]:
    """Host pids of the processes in the init's pid namespace, the init left out.

    A process is taken by its namespace file where that may be read, so what the box does with names and parents does
    not matter.
    """
    try:
        namespace = os.readlink(f"/proc/{init}/ns/pid")
    except OSError:
        return []
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != init:
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found.append(int(name))
            except PermissionError:
                if _descends(int(name), init):
                    found.append(int(name))
            except OSError:
                continue
    return found


def _descends(pid: int, init: int) -> bool:
    """For a process that hides its namespaces (it executed a file it may not read): by its parents.

    A process of the box descends from the init, or from the holder, which is the init's parent's parent.
    """
    roots = {init, _parent(_parent(init))}
    if len(_field(pid, "NSpid").split()) < 2:
        return False
    while pid > 1 and pid not in roots:
        pid = _parent(pid)
    return pid in roots and pid > 1


def _parent(pid: int) -> int:
    return int(_field(pid, "PPid") or 0)


def _field(pid: int, name: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def processes(init: int) -> list[tuple[int, bytes]]:
    """Host pid and command line, words joined by spaces; the name for a process without one. Zombies are left out."""
    found: list[tuple[int, bytes]] = []
    for pid in members(init):
        folder = Path(f"/proc/{pid}")
        try:
            status = (folder / "stat").read_bytes()
            if status.rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                continue
            with (folder / "cmdline").open("rb") as file:
                line = file.read(_COMMAND_LINE)
        except OSError:
            continue
        found.append((pid, line.rstrip(b"\0").replace(b"\0", b" ") or status.partition(b"(")[2].rpartition(b")")[0]))
    return found


def memory(init: int) -> int:
    """Anonymous memory of the box's processes together, bytes."""
    total = 0
    for pid in members(init):
        try:
            resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        except (OSError, ValueError):
            continue
        total += (int(resident) - int(shared)) * _PAGE
    return total


def disk(folder: Path) -> tuple[int, int]:
    """(bytes, entries) below a folder that is being written to."""
    size = count = 0
    for top, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            try:
                size += os.lstat(f"{top}/{name}").st_blocks * 512
            except OSError:
                continue
    return size, count


@cache
def processes_counted_per_namespace() -> bool:
    """Whether RLIMIT_NPROC counts a user namespace's own processes (Linux 5.14) and not all of a host user's."""
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return match is not None and (int(match[1]), int(match[2])) >= (5, 14)


def touch_own_cgroup() -> None:
    """Move this process to the cgroup it is in already: nothing happens, but a move soon after is quick.

    The first move after a pause waits for an RCU grace period (8 to 16 ms measured, Linux 6.18), those within about
    10 ms of it do not (0.2 ms). Done while the box boots, this takes the wait out of the way of its first command.
    """
    from caisson_tracerd.cgroup import v2_root

    try:
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        descriptor = os.open(f"{v2_root()}{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
    except (OSError, StopIteration):
        pass  # a slower start, no more
