"""The witness ``polling``: a scan of /proc from outside, again and again. An honest best effort, as others do it.

One thread reads, for every process of the box, its command line, program, descriptors and mappings, and once per scan
the socket tables of the box's network namespace. The wait between scans is the interval minus what the scan took; a
scan that takes longer than the interval is followed by the next one at once.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from caisson_runner.boxes import census
from caisson_runner.compare.sights import Polled


class Poller:
    """Scans from `start` until `stop`. ``members`` gives the host pids of the box's processes."""

    def __init__(self, members: Callable[[], list[int]], interval_s: float) -> None:
        self._members = members
        self._interval_s = interval_s
        self._commands: set[tuple[int, tuple[bytes, ...]]] = set()
        self._programs: set[tuple[int, bytes]] = set()
        self._files: set[tuple[int, bytes]] = set()
        self._addresses: set[bytes] = set()
        self._passes = 0
        self._busy_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Polled:
        """End the scanning; what was found."""
        self._over.set()
        self._thread.join()
        return Polled(
            frozenset(self._commands), frozenset(self._programs), frozenset(self._files), frozenset(self._addresses),
            self._passes, self._busy_s,
        )  # fmt: skip

    def _work(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            pids = self._members()
            for pid in pids:
                self._process(pid)
            if pids:
                self._sockets(pids[0])
            took = time.monotonic() - begun
            self._busy_s += took
            self._passes += 1
            self._over.wait(max(0.0, self._interval_s - took))

    def _process(self, pid: int) -> None:
        folder = f"/proc/{pid}"
        with suppress(OSError):
            inside = _inside(pid)
            line = Path(f"{folder}/cmdline").read_bytes()
            if line:
                self._commands.add((inside, tuple(line.removesuffix(b"\0").split(b"\0"))))
            self._programs.add((inside, os.readlink(os.fsencode(f"{folder}/exe"))))  # noqa: PTH115 - bytes
            for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208 - names alone, thousands of times
                with suppress(OSError):
                    self._files.add((inside, os.readlink(os.fsencode(f"{folder}/fd/{name}"))))  # noqa: PTH115
            for row in Path(f"{folder}/maps").read_bytes().splitlines():
                words = row.split(None, 5)
                if len(words) == 6 and words[5].startswith(b"/"):
                    self._files.add((inside, words[5]))

    def _sockets(self, pid: int) -> None:
        for name, family in (("tcp", 4), ("udp", 4), ("tcp6", 16), ("udp6", 16)):
            with suppress(OSError):
                for row in Path(f"/proc/{pid}/net/{name}").read_bytes().splitlines()[1:]:
                    self._addresses.add(_address(row.split()[2], family))
        with suppress(OSError):
            for row in Path(f"/proc/{pid}/net/unix").read_bytes().splitlines()[1:]:
                words = row.split(None, 7)
                if len(words) == 8:
                    name_ = words[7]
                    packed = b"\0" + name_[1:] if name_.startswith(b"@") else name_
                    self._addresses.add(struct.pack("<H", socket.AF_UNIX) + packed)


def members_of(init_pid: int, cgroup: Path | None) -> Callable[[], list[int]]:
    """How to list the box's processes: by its cgroup where it has one (quick), else by the pid namespace."""
    if cgroup is None:
        return lambda: census.members(init_pid)
    procs = cgroup / "cgroup.procs"

    def read() -> list[int]:
        try:
            return [int(word) for word in procs.read_bytes().split()]
        except OSError:
            return []

    return read


def _inside(pid: int) -> int:
    for row in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if row.startswith(b"NSpid:"):
            return int(row.split()[-1])
    return 0


def _address(text: bytes, size: int) -> bytes:
    """``0100007F:1F90`` as a packed sockaddr. The kernel prints addresses as words of the machine's order."""
    host, _, port = text.partition(b":")
    raw = bytes.fromhex(host.decode("ascii"))
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, size, 4))
    number = int(port, 16)
    if size == 4:
        return struct.pack("<H", socket.AF_INET) + struct.pack(">H", number) + packed + bytes(8)
    return struct.pack("<H", socket.AF_INET6) + struct.pack(">HI", number, 0) + packed + bytes(4)
