"""What is kept of a call between its two ends, where two threads want one place for it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto.record import Flag, Kind, Record
from caisson_tracerd import layout

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("tracepoint", "trampoline")

# The first child waits inside an open; the second, whose pid is as many further as there are places, opens too.
CODE = """
import ctypes, os, sys, time
fifo, places = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)

def child(pid):
    wanted = ctypes.c_int(pid)
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
    return libc.syscall(435, arguments, 88)

first = os.fork()
if not first:
    os.open(fifo, os.O_RDONLY)
    os.open("/etc/passwd", os.O_RDONLY)
    os._exit(0)
while not open(f"/proc/{first}/syscall", "rb").read().startswith(b"257 "):
    time.sleep(0.001)
second = -1
for times in (1, -1, 2, -2):
    if second < 0 and first + times * places > 300:
        second = child(first + times * places)
        if not second:
            os.open("/etc/hostname", os.O_RDONLY)
            os._exit(0)
if second > 0:
    os.waitpid(second, 0)
os.close(os.open(fifo, os.O_WRONLY))
os.waitpid(first, 0)
print(first, second)
"""


def opened(records: list[Record], pid: int, given: bytes) -> Record:
    (found,) = [one for one in records if (one.kind, one.pid, one.given) == (Kind.OPEN, pid, given)]
    return found


def test_two_threads_with_one_place_are_both_told_whole(client: Client, tmp_path: Path) -> None:
    sizes = (layout.sources() / "lib/sizes.h").read_text()
    places = re.search(r"#define SMALL_SLOTS (\d+)", sizes)
    assert places is not None
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    client.create("box")
    done = client.run("box", [sys.executable, "-I", "-S", "-c", CODE, str(fifo), places[1]])
    first, second = map(int, done.stdout.split())
    if second < 0:
        pytest.skip("the pids at that distance are taken, or may not be chosen here")
    client.seal("box")
    records = client.records("box")
    for pid, given in ((first, os.fsencode(fifo)), (first, b"/etc/passwd"), (second, b"/etc/hostname")):
        record = opened(records, pid, given)
        assert not record.flags & (Flag.NO_ENTRY | Flag.TOCTOU)
        assert (record.error, record.given_exit) == (0, None)
        assert record.resolved == os.fsencode(Path(os.fsdecode(given)).resolve())
