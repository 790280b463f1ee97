"""What io_uring does is on record, though it makes no system call for it."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto.record import ChangeOp, Flag, Kind, PassOp, Record, SocketOp

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("tracepoint", "trampoline")

RING = """
import ctypes, mmap, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
kept = []
def text(data):
    kept.append(ctypes.create_string_buffer(data)); return ctypes.addressof(kept[-1])
class Ring:
    def __init__(self, flags=0, entries=8):
        p = ctypes.create_string_buffer(struct.pack("III", 0, 0, flags) + struct.pack("II", 0, 0), 120)
        self.fd = libc.syscall(425, entries, p)
        if self.fd < 0:
            print("no ring", flush=True); os._exit(3)
        words = struct.unpack("30I", p.raw)
        self.flags = flags
        sq, cq = words[10:20], words[20:30]
        def place(size, at):
            return libc.mmap(None, ctypes.c_size_t(size), 3, 0x8001, self.fd, ctypes.c_long(at))
        base = place(max(sq[6] + entries * 4, cq[5] + entries * 2 * 16), 0)
        self.sqes = place(entries * 64, 0x10000000)
        word = lambda at: ctypes.c_uint32.from_address(base + at)
        self.tail, self.mask, self.array = word(sq[1]), word(sq[2]).value, base + sq[6]
        self.status = word(sq[4])
        self.head, self.cq_tail, self.cq_mask, self.cqes = word(cq[0]), word(cq[1]), word(cq[2]).value, base + cq[5]
        self.number = 0
    def submit(self, opcode, fd=-1, flags=0, off=0, addr=0, length=0, op_flags=0, slot=0, wait=True):
        self.number += 1
        at = self.tail.value & self.mask
        head = struct.pack("=BBHiQQIIQ", opcode, flags, 0, fd, off, addr, length, op_flags, self.number)
        sqe = head + struct.pack("=HHIQQ", 0, 0, slot, 0, 0)
        ctypes.memmove(self.sqes + at * 64, sqe, 64)
        ctypes.c_uint32.from_address(self.array + at * 4).value = at
        self.tail.value += 1
        if self.flags & 2:
            for _ in range(4000):
                if self.status.value & 1: libc.syscall(426, self.fd, 0, 0, 2, None, 0)
                if self.head.value != self.cq_tail.value: break
                time.sleep(0.001)
        else:
            libc.syscall(426, self.fd, 1, 1 if wait else 0, 1, None, 0)
        if not wait:
            time.sleep(0.2); return None
        data, result, _ = struct.unpack("=QiI", ctypes.string_at(self.cqes + (self.head.value & self.cq_mask) * 16, 16))
        assert data == self.number
        self.head.value += 1
        return result
top = os.fsencode(sys.argv[1])
"""


def played(client: Client, code: str, folder: Path, *before: str) -> tuple[list[list[int]], list[Record]]:
    """(numbers the program printed, line by line; what io_uring did by the record)."""
    client.needs_rings()
    client.create("box", ring_bytes=1 << 20)
    told = client.run("box", [*before, sys.executable, "-I", "-S", "-c", RING + code, str(folder)])
    if told.stdout == b"no ring\n":
        pytest.skip("io_uring is not to be had here")
    assert told.returncode == 0
    counts = client.seal("box")
    for count in counts.values():
        assert count.seen == count.delivered
    records = [record for record in client.records("box") if Flag.IO_URING in record.flags]
    return [[int(word) for word in line.split()] for line in told.stdout.splitlines()], records


@pytest.mark.parametrize("flags", [0, 2], ids=["enter", "sqpoll"])
def test_an_open_through_a_ring_is_on_record_with_its_result(client: Client, tmp_path: Path, flags: int) -> None:
    (tmp_path / "secret").write_text("x")
    code = f"""
os.chdir(top)
r = Ring({flags})
print(r.submit(18, -100, addr=text(top + b"/secret"), op_flags=os.O_RDONLY))
print(r.submit(18, -100, addr=text(b"absent"), op_flags=os.O_RDONLY))
how = text(struct.pack("QQQ", os.O_RDWR | os.O_CREAT, 0o604, 8))
print(r.submit(28, -100, addr=text(b"made"), off=how, length=24))
"""
    ((fd,), (failed,), (made,)), records = played(client, code, tmp_path)
    opens = [record for record in records if record.kind == Kind.OPEN]
    top, real = os.fsencode(tmp_path), (tmp_path / "secret").stat()
    assert fd >= 0
    assert made >= 0
    assert failed == -errno.ENOENT
    assert [(r.given, r.error, r.resolved) for r in opens] == [
        (top + b"/secret", 0, top + b"/secret"),
        (b"absent", errno.ENOENT, None),
        (b"made", 0, top + b"/made"),
    ]
    assert opens[0].args[3:5] == (real.st_dev, real.st_ino)
    assert opens[1].place == top + b"/absent"
    assert (opens[2].args[1] & os.O_CREAT, opens[2].args[2]) == (os.O_CREAT, 0o604 | 8 << 32)
    assert len({record.identity for record in records}) == 1, "also the kernel's own thread is the process"


def test_an_open_into_a_slot_is_flagged_and_still_has_its_object(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = """
r = Ring()
table = text(struct.pack("4i", -1, -1, -1, -1))
libc.syscall(427, r.fd, 2, ctypes.c_void_p(table), 4)           # register files, sparse
print(r.submit(18, -100, addr=text(top + b"/secret"), op_flags=os.O_RDONLY, slot=2))
print(r.submit(18, -100, addr=text(top + b"/secret"), op_flags=os.O_RDONLY, slot=0xffffffff))
"""
    told, records = played(client, code, tmp_path)
    assert told[0] == [0]
    opens = [record for record in records if record.kind == Kind.OPEN]
    assert len(opens) == 2
    real = (tmp_path / "secret").stat()
    for record in opens:
        assert Flag.DIRECT in record.flags
        if record.resolved is None:
            assert (
                Flag.UNRESOLVED in record.flags
            )  # before Linux 6.13 the table is not read, and then only a hook knows
            assert client.tier == "tracepoint"
        else:
            assert record.resolved == os.fsencode(tmp_path / "secret")
            assert record.args[3:5] == (real.st_dev, real.st_ino)


def test_an_open_that_will_not_tell_its_success_is_on_record(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = """
r = Ring()
r.submit(18, -100, flags=64, addr=text(top + b"/secret"), op_flags=os.O_RDONLY, wait=False)
"""
    _, (record,) = played(client, code, tmp_path)
    path = os.fsencode(tmp_path / "secret")
    assert record.given == path
    if client.tier == "tracepoint":  # told at once, before anything is known
        assert Flag.PENDING in record.flags
        assert Flag.UNRESOLVED in record.flags
    else:  # told inside, where it was opened
        assert Flag.PENDING not in record.flags
        assert record.resolved == path


def test_an_open_that_fails_before_anything_is_opened_is_on_record(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = """
import resource
r = Ring()
resource.setrlimit(resource.RLIMIT_NOFILE, (r.fd + 1, r.fd + 1))
while True:                                             # no descriptor is left
    try: os.dup(0)
    except OSError: break
print(r.submit(18, -100, addr=text(top + b"/secret"), op_flags=os.O_RDONLY))
"""
    ((result,),), (record,) = played(client, code, tmp_path)
    assert result == -errno.EMFILE
    assert (record.kind, record.error, record.given) == (Kind.OPEN, errno.EMFILE, os.fsencode(tmp_path / "secret"))


def test_a_descriptor_taken_out_of_a_rings_own_table_is_on_record(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = """
r = Ring()
table = text(struct.pack("i", os.open(top + b"/secret", os.O_RDONLY)))
libc.syscall(427, r.fd, 2, ctypes.c_void_p(table), 1)           # register files
print(r.submit(54, 0, flags=1))                                 # install slot 0
"""
    ((result,),), records = played(client, code, tmp_path)
    if result == -errno.EINVAL:
        pytest.skip(f"io_uring of {os.uname().release} does not hand out its files (before 6.8)")
    real = (tmp_path / "secret").stat()
    (passed,) = records
    assert (passed.kind, passed.args[0], passed.args[1]) == (Kind.PASS, PassOp.RING, result)
    assert (passed.args[3:5], passed.resolved) == ((real.st_dev, real.st_ino), os.fsencode(tmp_path / "secret"))


def test_names_changed_through_a_ring_are_on_record(client: Client, tmp_path: Path) -> None:
    code = """
os.chdir(top); open("a", "w").close()
r = Ring()
print(r.submit(35, -100, addr=text(b"a"), off=text(top + b"/b"), length=0xffffff9c))     # renameat
print(r.submit(39, -100, addr=text(b"b"), off=text(b"c"), length=0xffffff9c))            # linkat
print(r.submit(38, -100, addr=text(b"/target"), off=text(b"soft")))                      # symlinkat
print(r.submit(37, -100, addr=text(b"room"), length=0o700))                              # mkdirat
print(r.submit(36, -100, addr=text(b"c")))                                               # unlinkat
print(r.submit(36, -100, addr=text(b"room"), op_flags=0x200))
print(r.submit(36, -100, addr=text(b"none")))
"""
    told, records = played(client, code, tmp_path)
    top = os.fsencode(tmp_path)
    assert [(ChangeOp(r.args[0]), r.place, r.new_place, -r.error) for r in records] == [
        (ChangeOp.RENAME, top + b"/a", top + b"/b", 0),
        (ChangeOp.LINK, top + b"/b", top + b"/c", 0),
        (ChangeOp.SYMLINK, b"/target", top + b"/soft", 0),
        (ChangeOp.MKDIR, top + b"/room", None, 0),
        (ChangeOp.UNLINK, top + b"/c", None, 0),
        (ChangeOp.RMDIR, top + b"/room", None, 0),
        (ChangeOp.UNLINK, top + b"/none", None, -errno.ENOENT),
    ]
    assert [-r.error for r in records] == [result for (result,) in told]
    assert all(Flag.KERNEL in r.flags for r in records)


def test_sockets_used_through_a_ring_are_on_record(client: Client, tmp_path: Path) -> None:
    code = """
os.system("ip link set lo up && ip route add local 192.0.2.0/24 dev lo")
def address(port, last): return text(struct.pack("=HH4s8x", 2, socket.htons(port), bytes([192, 0, 2, last])))
r = Ring()
server = socket.create_server(("192.0.2.1", 7000))
made = r.submit(45, 2, off=1, length=0)                                        # socket
print(made)
print(r.submit(16, made, addr=address(7000, 1), off=16))                       # connect
print(r.submit(13, server.fileno()))                                           # accept
refused = socket.socket()
print(r.submit(16, refused.fileno(), addr=address(7001, 1), off=16))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
data = text(b"x"); vector = text(struct.pack("QQ", data, 1))
print(r.submit(9, u.fileno(), addr=text(struct.pack("QQQQQQQ", address(53, 2), 16, vector, 1, 0, 0, 0)), length=1))
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
socket.send_fds(left, [b"x"], [os.open("/dev/null", 0)])
control = text(bytes(64))
print(r.submit(10, right.fileno(), addr=text(struct.pack("QQQQQQQ", 0, 0, vector, 1, control, 64, 0)), length=1))
"""
    told, records = played(client, code, tmp_path, "unshare", "-n")
    (made,), (connected,), (accepted,), (refused,), (sent,), (received,) = told
    assert (connected, refused, sent, received) == (0, -errno.ECONNREFUSED, 1, 1)
    connects = [r for r in records if r.kind == Kind.CONNECT]
    assert [(r.args[1], -r.error) for r in connects] == [(7000, 0), (7001, -errno.ECONNREFUSED)]
    assert connects[0].addr is not None
    assert connects[0].addr[4:8] == socket.inet_aton("192.0.2.1")
    sockets = {SocketOp(r.args[0]): r for r in records if r.kind == Kind.SOCKET}
    assert sockets[SocketOp.CREATE].args[1:5] == (2, 0, made, 1 | 6 << 16)
    assert sockets[SocketOp.ACCEPT].args[3] == accepted
    assert sockets[SocketOp.SEND].args[2] == 53
    (passed,) = [r for r in records if r.kind == Kind.PASS]
    assert (passed.args[0], passed.resolved) == (PassOp.MESSAGE, b"/dev/null")
