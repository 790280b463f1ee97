"""What runs in a cgroup at one moment: processes, their open descriptors, and the files mapped executable.

Taken when a container is attached, after its recording has begun: what is listed here was there before, and what began
meanwhile is in the record as well. Everything is bounded, and what was cut is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from caisson_tracerd.cgroup import Cgroup

MAX_PROCESSES: Final = 4096
MAX_DESCRIPTORS: Final = 1024
"""Listed for one process."""
MAX_MAPS: Final = 512
MAX_TEXT: Final = 8 << 20
"""Bytes of names and arguments in one census, about."""
_ARGV_BYTES: Final = 1 << 16
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def take(path: Path) -> dict[str, Any]:
    """The census of a cgroup and what lies below it. Bytes are strings with lone surrogates (``os.fsdecode``)."""
    processes: list[dict[str, Any]] = []
    cut: list[str] = []
    room = MAX_TEXT
    for pid in sorted(Cgroup.open(path).pids()):
        if len(processes) >= MAX_PROCESSES or room <= 0:
            cut.append("processes")
            break
        try:
            found = _process(pid, cut)
        except OSError:
            continue  # it ended meanwhile; the record has its exit
        room -= sum(len(word) for word in (*found["argv"], *(one["target"] for one in found["open"]), *found["mapped"]))
        processes.append(found)
    return {"processes": processes, "cut": sorted(set(cut))}


def _process(pid: int, cut: list[str]) -> dict[str, Any]:
    folder = f"/proc/{pid}"
    stat = Path(f"{folder}/stat").read_bytes()
    fields = stat.rpartition(b")")[2].split()
    status = Path(f"{folder}/status").read_text(errors="replace")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    with open(f"{folder}/cmdline", "rb") as file:
        argv = file.read(_ARGV_BYTES + 1)
    if len(argv) > _ARGV_BYTES:
        cut.append("argv")
    opened = list(_descriptors(folder, cut))
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "start_ns": int(fields[19]) * _TICK_NS,
        "inner_pid": int(lines.get("NSpid", str(pid)).split()[-1]),
        "uid": int(lines["Uid"].split()[1]),
        "name": os.fsdecode(stat.partition(b"(")[2].rpartition(b")")[0]),
        "argv": [os.fsdecode(word) for word in argv[:_ARGV_BYTES].split(b"\0")[:-1]],
        "exe": _link(f"{folder}/exe"),
        "cwd": _link(f"{folder}/cwd"),
        "threads": int(lines.get("Threads", "1")),
        "open": opened,
        "mapped": list(_mapped(folder, cut)),
    }


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a magic link; its text is no path of ours
    except OSError:
        return ""


def _descriptors(folder: str, cut: list[str]) -> Iterator[dict[str, Any]]:
    try:
        numbers = sorted(int(name) for name in os.listdir(f"{folder}/fd"))  # noqa: PTH208
    except OSError:
        cut.append("descriptors")
        return
    if len(numbers) > MAX_DESCRIPTORS:
        cut.append("descriptors")
    for number in numbers[:MAX_DESCRIPTORS]:
        try:
            target = os.readlink(f"{folder}/fd/{number}")  # noqa: PTH115
            with open(f"{folder}/fdinfo/{number}") as file:
                flags = next((int(line[6:], 8) for line in file if line.startswith("flags:")), 0)
        except OSError:
            continue
        yield {"fd": number, "target": target, "flags": flags}


def _mapped(folder: str, cut: list[str]) -> Iterator[str]:
    """Files mapped executable, each once, as the kernel shows their paths."""
    seen: set[bytes] = set()
    try:
        with open(f"{folder}/maps", "rb") as file:
            for line in file:
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) < 6 or b"x" not in fields[1] or fields[5] in seen or fields[5].startswith(b"["):
                    continue
                if len(seen) >= MAX_MAPS:
                    cut.append("maps")
                    return
                seen.add(fields[5])
                yield os.fsdecode(fields[5])
    except OSError:
        cut.append("maps")
