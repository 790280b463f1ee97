"""What the watched process does in the tests, and what of it must be the same under every witness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from caisson_proto.record import ChangeOp, Flag, Kind, Record
from caisson_runner.witness.strace_changes import CHANGES

STORY = r"""
import ctypes, os, socket, threading, time
open("mine.txt", "w").close()
for path in ("/solution/answer", "rel/none"):
    try: open(path)
    except OSError: pass
s = socket.socket()
try: s.connect(("192.0.2.1", 80))
except OSError: pass
u = socket.socket(socket.AF_UNIX)
try: u.connect("/tmp/no\n.sock")
except OSError: pass
t = threading.Thread(target=lambda: open(b"/tmp/\xff\x01<>\n\"7", "w")); t.start(); t.join()
if os.fork() == 0:
    try: os.execv("/nope", ["/nope", "a\n", ""])
    except OSError: pass
    os.execv("/bin/sh", ["sh", "-c", "exit 3"])
os.wait()
if os.fork() == 0:
    os.kill(os.getpid(), 9)
os.wait()
"""

PARITY = (
    STORY
    + r"""
libc = ctypes.CDLL(None, use_errno=True)
libc.creat(b"/tmp/made", 0o644)
os.symlink("/tmp/made", "/tmp/link")
os.open("/tmp/link", os.O_RDONLY)
d = os.open("/usr", os.O_PATH)
os.open("lib", os.O_RDONLY, dir_fd=d)
libc.syscall(437, -100, b"/etc/hostname", (ctypes.c_uint64 * 3)(0, 0, 8), 24)
m = os.memfd_create("box")
os.open(f"/proc/self/fd/{m}", os.O_RDONLY)
os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
for path in ("/etc/shadow/x", "/tmp/" + "n" * 300, ""):
    try: os.open(path, os.O_WRONLY)
    except OSError: pass
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try: v6.connect(("2001:db8::1", 53))
except OSError: pass
a = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try: a.connect("\0abstract")
except OSError: pass
libc.connect(99, b"\2\0\0\x50\xc0\0\2\1" + bytes(8), 16)
open("/tmp/script", "w").write("#!/bin/sh\nexit 4\n"); os.chmod("/tmp/script", 0o755)
os.spawnv(os.P_WAIT, "/tmp/script", ["script", "one", ""])
os.mkdir("/tmp/room", 0o700)
os.rename("/tmp/script", "/tmp/room/script")
os.chdir("/tmp/room")
r = os.open("/tmp", os.O_PATH)
os.link("script", "hard")
os.symlink("/tests/x", "soft")
os.rename("soft", "made", dst_dir_fd=r)
os.truncate("hard", 3); os.chmod("/tmp/room/hard", 0o600)
f = os.open("hard", os.O_RDWR); os.ftruncate(f, 2); os.fchmod(f, 0o640)
os.unlink("hard")
for gone in (lambda: os.rmdir("/tmp/room"), lambda: os.unlink("hard"), lambda: os.rename("none", "/etc/none")):
    try: gone()
    except OSError: pass
for path in ("/etc/passwd", "/tmp", "/tmp/made/x"):
    try: os.execv(path, ["x"])
    except OSError: pass
"""
)


SHARED = (Kind.FORK, Kind.EXEC, Kind.EXIT, Kind.OPEN, Kind.CONNECT)
"""Kinds both witnesses tell in full; of changes, both tell those in `CHANGES`."""


def facts(records: Iterable[Record]) -> Counter[tuple[object, ...]]:
    """Every record reduced to what does not depend on the witness, the run or the process numbers."""
    return Counter(
        _fact(one)
        for one in records
        if one.kind in SHARED or (one.kind is Kind.CHANGE and ChangeOp(one.args[0]) in CHANGES.values())
    )


def _fact(one: Record) -> tuple[object, ...]:
    thread = bool(one.flags & Flag.THREAD)
    if one.kind is Kind.FORK:
        return "fork", thread, one.args[3] & 0xFFFF_FF00
    if one.kind is Kind.EXIT:
        return "exit", thread, one.args[:3]
    if one.kind is Kind.EXEC:
        argv = one.argv
        scripted = one.interp is not None or one.given == b"/tmp/script"  # argv is then the interpreter's
        return "exec", one.asked, one.error, None if scripted else argv, one.cwd
    if one.kind is Kind.OPEN:
        resolved = one.resolved.split(b"#")[0].split(b":")[0] if one.resolved else None
        deleted = bool(one.flags & Flag.DELETED)
        return "open", one.asked, resolved, one.error, one.open_flags, one.dirfd, one.args[5], deleted
    if one.kind is Kind.CHANGE:
        return "change", ChangeOp(one.args[0]).name, one.place, one.new_place, one.error
    family, port, protocol, _fd, kind, _inode = one.args
    if family == 1 and kind != 1:
        kind = 0  # strace cannot tell a datagram from a packet socket
    addr = (one.addr or b"")[: {2: 8, 10: 28}.get(family, 128)]
    return "connect", family, port, protocol, kind, one.error, addr.partition(b"socket\0")[0]
