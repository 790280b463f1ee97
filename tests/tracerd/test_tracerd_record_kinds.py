"""Changes, looks, passed descriptors, crossings and sockets: what is on record, compared with what the machine says."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto.record import ChangeOp, CrossOp, Flag, Kind, LookOp, PassOp, Record, SocketOp, signed
from caisson_tracerd import rules
from tracerd_rig import SLOW

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("tracepoint", "trampoline")

HELP = """
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    found = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return found if found >= 0 else -ctypes.get_errno()
"""


def python(code: str, *args: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-I", "-S", "-c", HELP + code, *args]


def of(records: list[Record], kind: Kind, op: int) -> list[Record]:
    return [record for record in records if record.kind == kind and record.args[0] == op]


def test_every_way_to_change_names_is_on_record_with_both_names(client: Client, tmp_path: Path) -> None:
    code = """
os.chdir(sys.argv[1])
here = os.open(".", os.O_RDONLY)
top = os.fsencode(sys.argv[1])
open("a", "w").close(); open("x", "w").close()
os.rename("a", "b")
call(316, here, b"b", -100, b"x", 2)            # renameat2, exchange
os.link("b", top + b"/hard")
os.symlink("no/path at all", "soft")
os.mkdir("folder", 0o750)
call(133, b"pipe", 0o10644, 0)                  # mknod
os.rename("x", "folder/x", src_dir_fd=here, dst_dir_fd=here)
os.unlink("hard")
call(263, here, b"folder/x", 0)                 # unlinkat
call(263, here, b"folder", 0x200)
try: os.rmdir("folder")
except OSError: pass
"""
    records = client.watch("box", python(code, str(tmp_path)))
    top = os.fsencode(tmp_path)
    found = [
        (ChangeOp(record.args[0]), record.place, record.new_place, record.error)
        for record in records
        if record.kind == Kind.CHANGE
    ]
    link = next(number for number, (op, *_) in enumerate(found) if op == ChangeOp.SYMLINK)
    assert found[link][1] in (None, top + b"/soft"), "inside the call the new link is known; at its ends it is not"
    found[link] = (ChangeOp.SYMLINK, None, *found[link][2:])
    assert found == [
        (ChangeOp.RENAME, top + b"/a", top + b"/b", 0),
        (ChangeOp.RENAME, top + b"/b", top + b"/x", 0),
        (ChangeOp.LINK, top + b"/b", top + b"/hard", 0),
        (ChangeOp.SYMLINK, None, top + b"/soft", 0),
        (ChangeOp.MKDIR, top + b"/folder", None, 0),
        (ChangeOp.MKNOD, top + b"/pipe", None, 0),
        (ChangeOp.RENAME, top + b"/x", top + b"/folder/x", 0),
        (ChangeOp.UNLINK, top + b"/hard", None, 0),
        (ChangeOp.UNLINK, top + b"/folder/x", None, 0),
        (ChangeOp.RMDIR, top + b"/folder", None, 0),
        (ChangeOp.RMDIR, top + b"/folder", None, errno.ENOENT),
    ]
    exchange = of(records, Kind.CHANGE, ChangeOp.RENAME)[1]
    assert (exchange.args[2], signed(exchange.args[5])) == (2, -100)
    assert exchange.cwd == top
    assert exchange.new_cwd == top
    assert of(records, Kind.CHANGE, ChangeOp.SYMLINK)[0].given == b"no/path at all"
    assert of(records, Kind.CHANGE, ChangeOp.MKDIR)[0].args[2] == 0o750


def test_changes_of_content_and_metadata_name_the_object_where_there_is_one(client: Client, tmp_path: Path) -> None:
    code = """
path = os.fsencode(sys.argv[1]) + b"/file"
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.truncate(path, 5000); os.ftruncate(fd, 7000)
os.chmod(path, 0o604); os.fchmod(fd, 0o640)
os.chown(path, 7, 8); os.fchown(fd, 9, 10); os.lchown(path, 0, 0)
os.utime(path); os.utime(fd)
for a in (path, fd):
    try: os.setxattr(a, b"user.a", b"1234")
    except OSError: pass
    try: os.removexattr(a, b"user.a")
    except OSError: pass
import mmap
mmap.mmap(fd, 4096)
mmap.mmap(fd, 4096, access=mmap.ACCESS_READ)
os.memfd_create("my memory")
"""
    records = client.watch("box", python(code, str(tmp_path)))
    path, real = os.fsencode(tmp_path / "file"), (tmp_path / "file").stat()
    for op, given, values in (
        (ChangeOp.TRUNCATE, path, {5000, 7000}),
        (ChangeOp.CHMOD, path, {0o604, 0o640}),
        (ChangeOp.CHOWN, path, {7, 9, 0}),
        (ChangeOp.UTIME, path, {0}),
        (ChangeOp.SETXATTR, path, {4}),
        (ChangeOp.REMOVEXATTR, path, {0}),
    ):
        found = of(records, Kind.CHANGE, op)
        assert {record.args[2] for record in found} == values, op
        by_name = [record for record in found if record.given == given]
        by_number = [record for record in found if record.args[3:5] == (real.st_dev, real.st_ino)]
        assert by_name, op
        assert by_number, op
        assert {record.resolved for record in by_number} == {path}
        assert all(record in by_name or record in by_number for record in found)
    assert {record.name for record in of(records, Kind.CHANGE, ChangeOp.SETXATTR)} == {b"user.a"}
    (mapped,) = [record for record in of(records, Kind.CHANGE, ChangeOp.MMAP) if record.resolved == path]
    assert mapped.args[2:4] == (3, real.st_dev)
    (memory,) = of(records, Kind.CHANGE, ChangeOp.MEMFD)
    assert memory.name == b"my memory"
    assert Flag.DELETED in memory.flags
    assert memory.resolved is not None
    assert b"memfd:my memory" in memory.resolved


def test_mounts_old_and_new_style_are_on_record(client: Client, tmp_path: Path) -> None:
    code = """
path = os.fsencode(sys.argv[1])
assert libc.mount(b"none", path, b"tmpfs", 2, b"size=4096") == 0
tree = call(428, -100, path, 1)                 # open_tree, clone
os.mkdir(path + b"/to")
print(call(429, tree, b"", -100, path + b"/to", 4))
fs = call(430, b"tmpfs", 0); call(431, fs, 6, None, None, 0); call(432, fs, 0, 0)
libc.umount2(path + b"/to", 2); libc.umount2(path, 2)
"""
    records = client.watch("box", ["unshare", "-m", *python(code, str(tmp_path))])
    path = os.fsencode(tmp_path)
    (mount,) = [record for record in of(records, Kind.CHANGE, ChangeOp.MOUNT) if record.name == b"tmpfs"]
    assert (mount.given, mount.new, mount.args[2]) == (b"none", path, 2)
    (tree,) = of(records, Kind.CHANGE, ChangeOp.OPEN_TREE)
    assert (tree.given, tree.error) == (path, 0)
    assert tree.args[4] != 0
    (moved,) = of(records, Kind.CHANGE, ChangeOp.MOVE_MOUNT)
    assert (moved.given, moved.new, moved.args[4]) == (b"", path + b"/to", tree.args[4])
    (opened,) = of(records, Kind.CHANGE, ChangeOp.FSOPEN)
    assert opened.name == b"tmpfs"
    assert len(of(records, Kind.CHANGE, ChangeOp.FSMOUNT)) == 1
    assert [record.given for record in of(records, Kind.CHANGE, ChangeOp.UMOUNT)] == [path + b"/to", path]


def test_names_of_a_change_survive_exactly_and_long_pairs_are_whole(client: Client, tmp_path: Path) -> None:
    code = """
os.chdir(sys.argv[1])
os.rename(b"\\xff\\n\\x1b[2J", b"caf\\xe9")
first, second = b"./" * 1900 + b"caf\\xe9", b"./" * 2000 + b"z"
os.rename(first, second)
try: os.rename(b"x" * 4095, b"y" * 4096)
except OSError: pass
"""
    odd = os.fsencode(tmp_path) + b"/\xff\n\x1b[2J"
    Path(os.fsdecode(odd)).touch()
    short, long, longest = of(client.watch("box", python(code, str(tmp_path))), Kind.CHANGE, ChangeOp.RENAME)
    assert (short.given, short.new) == (b"\xff\n\x1b[2J", b"caf\xe9")
    assert short.place == odd
    assert (long.given, long.new) == (b"./" * 1900 + b"caf\xe9", b"./" * 2000 + b"z")
    assert long.new_place == os.fsencode(tmp_path) + b"/z"
    assert Flag.TOCTOU not in long.flags
    assert (longest.error, Flag.TRUNCATED in longest.flags) == (errno.ENAMETOOLONG, True)
    assert longest.given == b"x" * 4095
    assert longest.new == b"y" * 4096


def test_a_name_rewritten_during_a_change_is_flagged_with_both_views(client: Client, tmp_path: Path) -> None:
    code = """
import threading
path, other = (os.fsencode(sys.argv[1]) + name for name in (b"/aaaa", b"/bbbb"))
new = os.fsencode(sys.argv[1]) + b"/new"
buffer = ctypes.create_string_buffer(path, 4096)
stop = False
def flip():
    while not stop:
        buffer.value = path; buffer.value = other
thread = threading.Thread(target=flip); thread.start()
sys.setswitchinterval(1e-6)
for _ in range(int(sys.argv[2])):
    open(path, "w").close(); open(other, "w").close()
    libc.rename(buffer, new)
stop = True; thread.join()
"""
    rounds = 4000 if SLOW == 1 else 400
    client.create("box", ring_bytes=1 << 22)
    client.run("box", python(code, str(tmp_path), str(rounds)))
    client.seal("box")
    raced = of(client.records("box"), Kind.CHANGE, ChangeOp.RENAME)
    assert len(raced) == rounds
    for record in raced:
        assert (record.given_exit is None) == (Flag.TOCTOU not in record.flags)
        assert record.new == os.fsencode(tmp_path / "new")


def test_looks_are_on_record_only_when_asked_for(client: Client, tmp_path: Path) -> None:
    code = """
os.chdir(sys.argv[1])
def quiet(call, *arguments):
    try: call(*arguments)
    except OSError: pass
quiet(os.stat, "file"); quiet(os.stat, "absent"); quiet(os.access, "file", 4); quiet(os.readlink, "link")
quiet(os.listdir, "."); quiet(os.statvfs, "file"); quiet(os.getxattr, "file", "user.x")
fd = os.open("file", 0); os.fstat(fd)
libc.inotify_add_watch(libc.inotify_init1(0), b".", 0x100)
call(303, -100, b"file", ctypes.create_string_buffer(struct.pack("II", 128, 0), 256), ctypes.byref(ctypes.c_int()), 0)
"""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert not [r for r in client.watch("off", python(code, str(tmp_path))) if r.kind == Kind.LOOK]
    client.create("on", looks=True)
    client.run("on", python(code, str(tmp_path)))
    counts = client.seal("on")
    looks = [record for record in client.records("on") if record.kind == Kind.LOOK]
    assert counts["look"].seen == counts["look"].delivered == len(looks)
    at = next(i for i, r in enumerate(looks) if r.args[0] == LookOp.CHDIR and r.given == os.fsencode(tmp_path))
    rest = looks[at + 1 :]
    top, real = os.fsencode(tmp_path), (tmp_path / "file").stat()
    told = {(LookOp(r.args[0]), r.place, r.error) for r in rest}
    for wanted in (
        (LookOp.STAT, top + b"/file", 0),
        (LookOp.STAT, top + b"/absent", errno.ENOENT),
        (LookOp.ACCESS, top + b"/file", 0),
        (LookOp.READLINK, top + b"/link", 0),
        (LookOp.GETDENTS, top, 0),
        (LookOp.STATFS, top + b"/file", 0),
        (LookOp.WATCH, top, 0),
        (LookOp.HANDLE, top + b"/file", 0),
    ):
        assert wanted in told
    assert any(r.args[3:5] == (real.st_dev, real.st_ino) for r in rest if r.args[0] == LookOp.STAT)
    assert [r.name for r in rest if r.args[0] == LookOp.GETXATTR] == [b"user.x"]


def test_a_failed_relative_open_tells_the_folder_it_started_from(client: Client, tmp_path: Path) -> None:
    code = """
os.chdir("/")
folder = os.open(sys.argv[1], os.O_RDONLY)
for name, where in (("solution/x", None), ("y", folder), ("/absolute", None)):
    try: os.open(name, 0, dir_fd=where)
    except OSError: pass
"""
    records = client.watch("box", python(code, str(tmp_path)))
    failed = {record.given: record for record in records if record.kind == Kind.OPEN and record.error}
    assert (failed[b"solution/x"].cwd, failed[b"solution/x"].place) == (b"/", b"/solution/x")
    assert failed[b"y"].place == os.fsencode(tmp_path / "y")
    assert failed[b"/absolute"].cwd is None


def test_a_refused_exec_tells_its_arguments(client: Client, tmp_path: Path) -> None:
    code = """
for arguments in ([b"x", b"", b"\\xff y"], [b"a" * 5000], [b"n"] * 400):
    try: os.execv(sys.argv[1], arguments)
    except OSError: pass
"""
    records = client.watch("box", python(code, str(tmp_path / "absent")))
    first, long, many = [record for record in records if record.kind == Kind.EXEC and record.error]
    assert (first.argv, first.args[3]) == ((b"x", b"", b"\xff y"), 3)
    assert Flag.TRUNCATED not in first.flags
    assert long.argv == (b"a" * 4095,)
    assert many.argv == (b"n",) * 256
    assert Flag.TRUNCATED in long.flags & many.flags


def test_descriptors_that_came_in_messages_are_on_record_with_their_objects(client: Client, tmp_path: Path) -> None:
    code = """
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
files = [os.open(sys.argv[1] + "/secret", os.O_RDONLY) for _ in range(3)]
socket.send_fds(left, [b"x"], files)
_, got, _, _ = socket.recv_fds(right, 1, 10)
print(*got)
many = [os.open("/dev/null", 0) for _ in range(200)]
socket.send_fds(left, [b"x"], many)
_, got, _, _ = socket.recv_fds(right, 1, 250)
print(*got)
left.send(b"nothing passed"); right.recvmsg(100, 100)
"""
    (tmp_path / "secret").write_text("x")
    client.create("box", ring_bytes=1 << 20)
    told = client.run("box", python(code, str(tmp_path)))
    counts = client.seal("box")
    first, many = ([int(word) for word in line.split()] for line in told.stdout.splitlines())
    passed = of(client.records("box"), Kind.PASS, PassOp.MESSAGE)
    real = (tmp_path / "secret").stat()
    assert [record.args[1] for record in passed] == first + many
    assert {record.resolved for record in passed[:3]} == {os.fsencode(tmp_path / "secret")}
    assert {record.args[3:5] for record in passed[:3]} == {(real.st_dev, real.st_ino)}
    null = Path("/dev/null").stat()
    assert {record.args[3:5] for record in passed[3:]} == {(null.st_dev, null.st_ino)}
    with_path = [record for record in passed[3:] if record.resolved == b"/dev/null"]
    assert len(with_path) >= 20
    assert all(Flag.UNRESOLVED in record.flags for record in passed[3:] if record.resolved is None)
    assert counts["pass"].seen == counts["pass"].delivered


def test_descriptors_taken_from_others_and_opened_by_handle_are_on_record(client: Client, tmp_path: Path) -> None:
    code = """
path = os.fsencode(sys.argv[1]) + b"/secret"
child = os.fork()
if child == 0:
    os.open(path, 0)
    os.read(os.open(sys.argv[1] + "/wait", os.O_RDONLY), 1)
    os._exit(0)
end = os.open(sys.argv[1] + "/wait", os.O_WRONLY)
pidfd = os.pidfd_open(child)
print(call(438, pidfd, 3, 0), pidfd)
handle = ctypes.create_string_buffer(struct.pack("II", 128, 0), 256)
assert call(303, -100, path, handle, ctypes.byref(ctypes.c_int()), 0) == 0
mount = os.open(sys.argv[1], 0)
print(call(304, mount, handle, os.O_RDONLY))
os.write(end, b"x"); os.wait()
"""
    (tmp_path / "secret").write_text("x")
    os.mkfifo(tmp_path / "wait")
    client.create("box")
    told = client.run("box", python(code, str(tmp_path)))
    client.seal("box")
    (taken, pidfd), (opened,) = ([int(word) for word in line.split()] for line in told.stdout.splitlines())
    records, real = client.records("box"), (tmp_path / "secret").stat()
    (copy,) = of(records, Kind.PASS, PassOp.PIDFD)
    assert (copy.args[1], copy.args[2], copy.args[5]) == (taken, pidfd, 3)
    (handle,) = of(records, Kind.PASS, PassOp.HANDLE)
    if opened < 0:
        pytest.skip("this file system has no handles")
    assert handle.args[1] == opened
    for record in (copy, handle):
        assert record.resolved == os.fsencode(tmp_path / "secret")
        assert record.args[3:5] == (real.st_dev, real.st_ino)


def test_crossings_are_on_record_with_their_arguments(client: Client, tmp_path: Path) -> None:
    code = """
libc.prctl(15, b"newname", 0, 0, 0)
libc.unshare(0x04000000)                        # CLONE_NEWUTS
libc.setns(os.open("/proc/self/ns/uts", 0), 0)
os.fstat(0)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0); os._exit(0)
os.wait()
word = ctypes.create_string_buffer(8)
vector = struct.pack("QQ", ctypes.addressof(word), 8)
call(310, os.getpid(), vector, 1, vector, 1, 0)
call(321, 99, None, 0)                          # bpf
call(425, 1, None)                              # io_uring_setup
call(250, 0, -3, 0)                             # keyctl
call(323, 0)                                    # userfaultfd
call(317, 99, 0, None)                          # seccomp
call(313, -1, b"", 0)                           # finit_module
s = socket.socket()
try: s.setsockopt(socket.SOL_SOCKET, 36, 7)     # mark
except OSError: pass
os.chroot(sys.argv[1])
"""
    records = client.watch("box", ["unshare", "-u", *python(code, str(tmp_path))])
    crossed = [record for record in records if record.kind == Kind.CROSS]
    found = Counter(CrossOp(record.args[0]) for record in crossed)
    for op in (
        CrossOp.PRCTL, CrossOp.SETNS, CrossOp.PTRACE, CrossOp.VM_READ, CrossOp.BPF, CrossOp.URING, CrossOp.KEYCTL,
        CrossOp.USERFAULTFD, CrossOp.SECCOMP, CrossOp.MODULE, CrossOp.MARK, CrossOp.CHROOT,
    ):  # fmt: skip
        assert found[op] == 1, op
    assert found[CrossOp.UNSHARE] == 2
    assert of(records, Kind.CROSS, CrossOp.PRCTL)[0].name == b"newname"
    assert {record.args[2] for record in of(records, Kind.CROSS, CrossOp.UNSHARE)} == {0x04000000}
    (setns,) = of(records, Kind.CROSS, CrossOp.SETNS)
    assert (setns.error, setns.args[5] > 0xF0000000 - 1) == (0, True)
    (root,) = of(records, Kind.CROSS, CrossOp.CHROOT)
    assert root.given == os.fsencode(tmp_path)
    (bpf,) = of(records, Kind.CROSS, CrossOp.BPF)
    assert (bpf.args[1], bpf.args[2], bpf.error) == (321, 99, errno.EINVAL)


def test_a_move_to_another_cgroup_is_on_record_and_says_whether_the_box_was_left(client: Client) -> None:
    box = Path(client.create("box").box.cgroup_path)
    child, outside = box / "below", box.parent / "outside-test"
    child.mkdir()
    outside.mkdir()
    try:
        script = 'echo $$ > "$1/cgroup.procs"; echo $$ > "$2/cgroup.procs"; /bin/true; echo $$'
        told = client.run("box", ["sh", "-c", script, "sh", str(child), str(outside)])
        client.seal("box")
    finally:
        outside.rmdir()
    inner, outer = of(client.records("box"), Kind.CROSS, CrossOp.CGROUP)
    pid = int(told.stdout)
    assert (inner.args[1], inner.args[3], inner.args[4]) == (pid, 1, 0)
    assert (outer.args[1], outer.args[3], outer.args[4]) == (pid, 0, 0)
    assert inner.given is not None
    assert inner.given.endswith(b"/box/below")
    assert outer.given is not None
    assert outer.given.endswith(b"/outside-test")


def test_sockets_of_every_kind_are_on_record(client: Client, tmp_path: Path) -> None:
    code = """
import threading
subprocess_ = os.system("ip link set lo up")
for family, kind, protocol in ((2, 3, 1), (17, 3, 0), (16, 3, 0), (40, 1, 0), (38, 5, 0), (2, 1, 262)):
    try: socket.socket(family, kind, protocol)
    except OSError as problem: print(family, problem.errno)
    else: print(family, 0)
server = socket.create_server(("127.0.0.1", 7001))
peer = socket.create_connection(("127.0.0.1", 7001))
got, address = server.accept()
print(address[1])
six = socket.socket(socket.AF_INET6)
try: six.connect(("::ffff:127.0.0.1", 7001))
except OSError: pass
u = socket.socket(socket.AF_UNIX); u.bind(sys.argv[1] + "/named"); u.listen()
c = socket.socket(socket.AF_UNIX); c.bind("\\0caller"); c.connect(sys.argv[1] + "/named")
u.accept()
"""
    client.create("box")
    told = client.run("box", ["unshare", "-n", *python(code, str(tmp_path))])
    client.seal("box")
    *made, port = told.stdout.decode().splitlines()
    records = client.records("box")
    created = of(records, Kind.SOCKET, SocketOp.CREATE)
    wanted = [(int(family), int(code)) for family, code in (line.split() for line in made)]
    assert [(r.args[1], r.error) for r in created if r.comm[:6] == b"python"][:6] == wanted
    assert created[-6].args[4] & 0xFFFF in (1, 2, 3)
    (bound,) = [r for r in of(records, Kind.SOCKET, SocketOp.BIND) if r.args[2] == 7001]
    assert bound.addr is not None
    assert bound.addr[4:8] == socket.inet_aton("127.0.0.1")
    assert [r.error for r in of(records, Kind.SOCKET, SocketOp.LISTEN)] == [0, 0]
    first, second = of(records, Kind.SOCKET, SocketOp.ACCEPT)
    assert first.args[2] == int(port)
    assert first.addr is not None
    assert first.addr[4:8] == socket.inet_aton("127.0.0.1")
    assert second.addr == b"\1\0\0caller"
    assert {r.addr for r in of(records, Kind.SOCKET, SocketOp.BIND) if r.args[1] == 1} == {
        b"\1\0" + os.fsencode(tmp_path / "named") + b"\0", b"\1\0\0caller",
    }  # fmt: skip
    (mapped,) = [r for r in records if r.kind == Kind.CONNECT and r.args[0] == socket.AF_INET6]
    assert mapped.addr is not None
    assert mapped.addr[8:24] == socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")


def test_every_datagram_with_a_destination_is_on_record(client: Client) -> None:
    code = """
os.system("ip link set lo up && ip route add local 192.0.2.0/24 dev lo")
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"1", ("192.0.2.1", 1001))
s.sendmsg([b"2"], [], 0, ("192.0.2.2", 1002))
count = 300
def name(port): return ctypes.create_string_buffer(struct.pack("=HHI8x", 2, socket.htons(port), 0x030200C0), 16)
names = [name(2000 + i) for i in range(count)]
data = ctypes.create_string_buffer(b"x")
vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 1))
where = ctypes.addressof(vector)
batch = b"".join(struct.pack("QIxxxxQQQQIxxxxIxxxx", ctypes.addressof(n), 16, where, 1, 0, 0, 0, 0) for n in names)
print(libc.sendmmsg(s.fileno(), batch, count, 0))
s.connect(("192.0.2.9", 9)); s.send(b"no record of its own")
try: s.sendto(b"3", ("255.255.255.255", 1))
except OSError: pass
"""
    client.create("box", ring_bytes=1 << 20)
    told = client.run("box", ["unshare", "-n", *python(code)])
    client.seal("box")
    assert int(told.stdout) == 300
    sent = [r for r in of(client.records("box"), Kind.SOCKET, SocketOp.SEND) if r.args[1] == socket.AF_INET]
    assert [r.args[2] for r in sent] == [1001, 1002, *range(2000, 2300), 1]
    assert {r.addr[4:8] for r in sent[2:-1] if r.addr} == {socket.inet_aton("192.0.2.3")}
    assert {r.error for r in sent[:-1]} == {0}
    assert sent[-1].error == errno.EACCES
    assert {(r.args[4] & 0xFFFF, r.args[4] >> 16) for r in sent} == {(socket.SOCK_DGRAM, socket.IPPROTO_UDP)}


def test_how_a_connect_under_way_ended_is_told_later(client: Client) -> None:
    code = """
import select
os.system("ip link set lo up && ip route add local 192.0.2.0/24 dev lo && ip -6 addr add 2001:db8::1 dev lo nodad")
def ask(family, address):
    s = socket.socket(family); s.setblocking(False)
    try: s.connect(address)
    except OSError: pass
    select.select([], [s], [], 5)
    print(s.fileno(), os.fstat(s.fileno()).st_ino, s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    return s
server = socket.create_server(("192.0.2.1", 7000))
kept = [ask(2, ("192.0.2.1", 7000)), ask(2, ("192.0.2.1", 7001)), ask(10, ("2001:db8::1", 7002))]
socket.create_connection(("192.0.2.1", 7000))
lost = socket.socket(); lost.setblocking(False)
os.system("iptables -V >/dev/null 2>&1; tc qdisc add dev lo root netem loss 100% 2>/dev/null")
"""
    client.create("box")
    told = client.run("box", ["unshare", "-n", *python(code)])
    client.seal("box")
    facts = [[int(word) for word in line.split()] for line in told.stdout.splitlines()]
    connects = [r for r in client.records("box") if r.kind == Kind.CONNECT and r.args[0] != socket.AF_UNIX]
    later = [r for r in connects if Flag.LATER in r.flags]
    assert [(r.args[3], r.args[5], r.error) for r in later] == [(fd, ino, code) for fd, ino, code in facts]
    assert [r.error for r in later] == [0, errno.ECONNREFUSED, errno.ECONNREFUSED]
    for r in later:
        (begun,) = [c for c in connects if c.args[5] == r.args[5] and c is not r]
        assert (begun.error, begun.args[:4], begun.seq < r.seq) == (errno.EINPROGRESS, r.args[:4], True)
        assert begun.identity == r.identity
        assert (begun.addr or b"")[:24] == (r.addr or b"")[:24] or r.args[0] == 2
    assert connects[-1].error == 0


def test_a_call_made_as_32_bits_is_seen_with_its_names(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code = """
import mmap
libc.mmap.restype = ctypes.c_void_p
area = libc.mmap(None, 16384, 7, 0x62, -1, 0)   # MAP_32BIT, private, anonymous; read, write, execute
def int80(number, *arguments):
    text = b"\\x53\\x56\\x57\\xb8" + struct.pack("I", number)
    for opcode, value in zip((0xbb, 0xb9, 0xba, 0xbe), arguments + (0,) * (4 - len(arguments))):
        text += bytes([opcode]) + struct.pack("I", value & 0xffffffff)
    text += b"\\xcd\\x80\\x5f\\x5e\\x5b\\xc3"
    ctypes.memmove(area, text, len(text))
    return ctypes.CFUNCTYPE(ctypes.c_int)(area)()
def put(offset, data):
    ctypes.memmove(area + offset, data, len(data)); return area + offset
top = os.fsencode(sys.argv[1])
old, new = put(4096, top + b"/file\\0"), put(8192, top + b"/moved\\0")
print(int80(38, old, new))                      # rename
print(int80(15, new, 0o600))                    # chmod
print(int80(92, new, 0))                        # truncate
fd = int80(102, 1, put(12288, struct.pack("III", 2, 2, 0)))        # socketcall: socket
print(fd)
name = put(12800, struct.pack("=HHI8x", 2, socket.htons(99), 0x010200C0))
print(int80(102, 11, put(12288, struct.pack("IIIIII", fd, old, 1, 0, name, 16))))   # sendto
print(int80(10, new))                           # unlink
"""
    client.create("box")
    told = client.run("box", ["unshare", "-n", *python(code, str(tmp_path))])
    if told.returncode or int(told.stdout.split()[0]) < 0:
        pytest.skip("this kernel has no 32-bit calls (IA32_EMULATION)")
    client.seal("box")
    records = [r for r in client.records("box") if Flag.COMPAT32 in r.flags]
    top = os.fsencode(tmp_path)
    assert [(r.kind, r.args[0], r.place, r.new_place) for r in records if r.kind == Kind.CHANGE] == [
        (Kind.CHANGE, ChangeOp.RENAME, top + b"/file", top + b"/moved"),
        (Kind.CHANGE, ChangeOp.CHMOD, top + b"/moved", None),
        (Kind.CHANGE, ChangeOp.TRUNCATE, top + b"/moved", None),
        (Kind.CHANGE, ChangeOp.UNLINK, top + b"/moved", None),
    ]
    sockets = [r for r in records if r.kind == Kind.SOCKET]
    assert [r.args[:3] for r in sockets] == [(SocketOp.CREATE, 2, 0), (SocketOp.SEND, 2, 99)]


def test_the_table_of_calls_agrees_with_the_kernels_headers() -> None:
    folder = Path("/usr/include/x86_64-linux-gnu/asm")
    if not (folder / "unistd_64.h").exists():
        pytest.skip("the C library's headers are not installed")
    native, compat = (
        {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)\n", (folder / f).read_text())}
        for f in ("unistd_64.h", "unistd_32.h")
    )
    compat["newfstatat"] = compat["fstatat64"]
    for name, first, second, _rule in rules.calls():
        if first is not None and first < 512 and name in native:
            assert native[name] == first, name
        if second is not None and name in compat:
            assert compat[name] == second, name


def test_the_watched_operations_have_the_names_of_the_records() -> None:
    for kind, enum in (
        ("change", ChangeOp), ("look", LookOp), ("pass", PassOp), ("cross", CrossOp), ("socket", SocketOp),
    ):  # fmt: skip
        assert [op.name.lower() for op in enum] == list(rules.OPS[kind][1:])
    text = (Path(__file__).parents[2] / "bpf/record.h").read_text()
    for kind, enum in (("CHANGE", ChangeOp), ("LOOK", LookOp), ("PASS", PassOp), ("CROSS", CrossOp)):
        found = re.findall(rf"CAISSON_{kind}_(\w+) = (\d+)", text)
        assert [(name, int(number)) for name, number in found] == [(op.name, int(op)) for op in enum]


def test_the_counters_of_every_kind_add_up(client: Client, tmp_path: Path) -> None:
    client.create("box", looks=True)
    client.run("box", ["sh", "-c", "touch $1/a; mv $1/a $1/b; rm $1/b; ls $1", "sh", str(tmp_path)])
    counts = client.seal("box")
    kinds = Counter(record.kind.name.lower() for record in client.records("box"))
    assert set(counts) == {kind.name.lower() for kind in Kind}
    for name, count in counts.items():
        assert count.seen == count.delivered == kinds[name]
    assert kinds["change"] >= 2
    assert subprocess.run(["ls", str(tmp_path)], capture_output=True).stdout == b""


def test_a_descriptor_put_into_a_supervised_process_is_on_record(client: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    code = """
import array, threading
# seccomp filter: mkdir asks the supervisor, everything else is allowed
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
program = step(0x20, 0, 0, 0) + step(0x15, 0, 1, 83) + step(0x06, 0, 0, 0x7fc00000) + step(0x06, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(program, len(program))
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
child = os.fork()
if child == 0:
    libc.prctl(38, 1, 0, 0, 0)
    listener = call(317, 1, 8, struct.pack("HxxxxxxQ", 4, ctypes.addressof(held)))
    socket.send_fds(left, [b"x"], [listener])
    os._exit(0 if call(83, b"/nonexistent/x", 0o700) > 2 else 1)
_, (listener,), _, _ = socket.recv_fds(right, 1, 1)
asked = ctypes.create_string_buffer(80)
assert libc.ioctl(listener, ctypes.c_ulong(0xc0502100), asked) == 0
source = os.open(sys.argv[1] + "/secret", os.O_RDONLY)
number = asked.raw[:8]
put = libc.ioctl(listener, ctypes.c_ulong(0x40182103), number + struct.pack("IIII", 2, source, 0, 0))
if put < 0:                                             # before Linux 5.14 the answer is a call of its own
    put = libc.ioctl(listener, ctypes.c_ulong(0x40182103), number + struct.pack("IIII", 0, source, 0, 0))
    libc.ioctl(listener, ctypes.c_ulong(0xc0182101), number + struct.pack("qiI", put, 0, 0))
print(put, source)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    client.create("box")
    told = client.run("box", python(code, str(tmp_path)))
    client.seal("box")
    assert told.returncode == 0
    put, source = (int(word) for word in told.stdout.split())
    records, real = client.records("box"), (tmp_path / "secret").stat()
    *refused, added = of(records, Kind.PASS, PassOp.ADDFD)
    assert all(one.error == errno.EINVAL for one in refused)
    assert (added.args[1], added.args[5], added.error) == (put, source, 0)
    assert added.resolved == os.fsencode(tmp_path / "secret")
    assert added.args[3:5] == (real.st_dev, real.st_ino)
    assert [record.args[2] for record in of(records, Kind.CROSS, CrossOp.SECCOMP)] == [1]
