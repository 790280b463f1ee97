"""Who a process is, while it is held so that its number cannot come to mean another."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from caisson_tracerd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Found:
    """A live process: its uids (real, effective, saved, file system) and its start, 10 ms exact."""

    pid: int
    uids: frozenset[int]
    start_ns: int
    cgroups: tuple[str, ...]
    start_ticks: int = 0

    def in_cgroup_below(self, prefix: str) -> bool:
        return any(path.startswith(prefix) for path in self.cgroups)


@contextmanager
def held(pid: int) -> Iterator[Found]:
    """Look at a process through a pidfd; UsageError when it does not live, also when it ended meanwhile."""
    gone = UsageError(f"process {pid} does not exist; it must wait until it is admitted")
    if pid <= 0:
        raise gone
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        raise gone from None
    try:
        try:
            found = look(pid)
        except OSError:
            raise gone from None
        if _ended(descriptor):
            raise gone
        yield found
        if _ended(descriptor):
            raise gone
    finally:
        os.close(descriptor)


def look(pid: int) -> Found:
    """What /proc says about a process. OSError when it is gone."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    ticks = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[19])
    return Found(
        pid,
        frozenset(int(word) for word in status["Uid"].split()),
        ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK")),
        tuple(line.split(":", 2)[2] for line in (folder / "cgroup").read_text().splitlines()),
        ticks,
    )


def _ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
