"""Kinds of events that hardly a program brings about: on record too, whether granted or refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto.record import ChangeOp, CrossOp, Kind, Record, SocketOp

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("tracepoint", "trampoline")

# Nothing here can change the machine: what would is asked for with arguments that the kernel must refuse.
CODE = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def told(name, number, *arguments):
    found = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    print(name, 0 if found >= 0 else ctypes.get_errno())
path = os.fsencode(sys.argv[1])
libc.mount(b"none", path, b"tmpfs", 0, b"size=4096")
told("FSPICK", 433, -100, path, 0)
told("MOUNT_SETATTR", 442, -100, path, 0, struct.pack("QQQQ", 1, 0, 0, 0), 32)
told("SETATTR", 469, -100, path, None, 0, 0)
word = ctypes.create_string_buffer(8)
vector = struct.pack("QQ", ctypes.addressof(word), 8)
told("VM_WRITE", 311, os.getpid(), vector, 1, vector, 1, 0)
told("PIVOT_ROOT", 155, b"/absent/new", b"/absent/old")
told("PERF", 298, None, 0, -1, -1, 0)
told("KEXEC", 246, 0, 1 << 30, None, 0)
told("CLOCK", 227, 0, None)
told("HOST", 170, b"renamed", 7)
told("HOST", 167, b"/absent/swap", 0)
os.system("ip link set lo up")
server = socket.create_server(("127.0.0.1", 7005))
print("FASTOPEN", 0 if socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", 7005)) == 1 else -1)
"""


def test_changes_and_crossings_that_are_rare_are_on_record_granted_or_refused(client: Client, tmp_path: Path) -> None:
    client.create("box")
    told = client.run("box", ["unshare", "-m", "-u", "-n", sys.executable, "-I", "-S", "-c", CODE, str(tmp_path)])
    counts = client.seal("box")
    assert told.returncode == 0
    results = [(name, int(error)) for name, error in (line.split() for line in told.stdout.decode().splitlines())]
    records = [record for record in client.records("box") if record.comm[:6] == b"python"]
    found = [(name_of(record), record.error) for record in records]
    assert [one for one in found if one[0] in dict(results)] == results
    by_name = {name_of(record): record for record in records}
    top = os.fsencode(tmp_path)
    assert [by_name[name].given for name in ("FSPICK", "MOUNT_SETATTR", "SETATTR")] == [top] * 3
    assert (by_name["PIVOT_ROOT"].given, by_name["PIVOT_ROOT"].new) == (b"/absent/new", b"/absent/old")
    assert by_name["HOST"].given == b"/absent/swap"
    assert (by_name["VM_WRITE"].args[1], by_name["VM_WRITE"].args[2]) == (311, by_name["VM_WRITE"].pid)
    assert by_name["FASTOPEN"].args[2] == 7005
    for kind in ("change", "cross", "socket"):
        assert counts[kind].seen == counts[kind].delivered


def name_of(record: Record) -> str:
    """What was done, by its name in the record's layout."""
    names = {Kind.CHANGE: ChangeOp, Kind.CROSS: CrossOp, Kind.SOCKET: SocketOp}
    return names[record.kind](record.args[0]).name if record.kind in names else ""
