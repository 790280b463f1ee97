"""What is on record of a box, compared with what the machine itself says."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto.record import Flag, Kind, Record
from caisson_tracerd.loader import all_types

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("tracepoint", "trampoline")


def python(code: str, *args: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-I", "-S", "-c", code, *args]


def opens(records: list[Record], given: bytes) -> list[Record]:
    return [record for record in records if record.kind == Kind.OPEN and record.given == given]


def execs(records: list[Record]) -> list[Record]:
    return [record for record in records if record.kind == Kind.EXEC]


def test_the_first_exec_of_the_box_is_on_record_with_its_argv(client: Client) -> None:
    records = client.watch("box", ["/bin/cat", b"", b"\xff\n\x1b[31m", "/etc/hostname"])
    first = records[0]
    assert (first.kind, first.seq, first.error) == (Kind.EXEC, 1, 0)
    assert first.argv == (b"/bin/cat", b"", b"\xff\n\x1b[31m", b"/etc/hostname")
    assert first.given == b"/bin/cat"
    assert first.resolved == os.fsencode(Path("/bin/cat").resolve())
    found = Path("/bin/cat").stat()
    assert first.args[:4] == (found.st_dev, found.st_ino, found.st_nlink, 4)
    assert first.cwd == os.fsencode(Path.cwd())
    assert first.interp is None
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


def test_a_script_names_its_interpreter(client: Client, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n:\n")
    script.chmod(0o755)
    first = client.watch("box", [str(script), "x"])[0]
    assert (first.given, first.interp) == (os.fsencode(script), b"/bin/sh")
    assert first.argv == (b"/bin/sh", os.fsencode(script), b"x")
    assert first.resolved == os.fsencode(Path("/bin/sh").resolve())


def test_a_failed_open_is_on_record_with_its_errno(client: Client, tmp_path: Path) -> None:
    records = client.watch("box", ["/bin/cat", str(tmp_path / "absent")], stderr=subprocess.DEVNULL)
    (record,) = opens(records, os.fsencode(tmp_path / "absent"))
    assert (record.error, record.resolved) == (errno.ENOENT, None)
    assert Flag.UNRESOLVED not in record.flags


@pytest.mark.parametrize(("name", "code"), [("absent", errno.ENOENT), ("plain", errno.EACCES)])
def test_a_refused_exec_is_on_record(client: Client, tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "plain").write_text("x")
    target = str(tmp_path / name)
    found = execs(client.watch("box", python("import os, sys\nos.execv(sys.argv[1], ['x'])", target), stderr=-3))
    assert [(record.given, record.error) for record in found if record.error] == [(os.fsencode(target), code)]


def test_a_name_through_a_link_is_resolved_to_the_object(client: Client, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to("target")
    (record,) = opens(client.watch("box", ["/bin/cat", str(tmp_path / "link")]), os.fsencode(tmp_path / "link"))
    found = (tmp_path / "target").stat()
    assert record.resolved == os.fsencode(tmp_path / "target")
    assert record.args[3:5] == (found.st_dev, found.st_ino)


def test_a_path_is_resolved_across_bind_mounts(client: Client, tmp_path: Path) -> None:
    for name in ("outer/inner", "source/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "source/deep/file").write_text("x")
    script = 'mount --bind "$1/source" "$1/outer/inner" && cd "$1/outer/inner/deep" && exec cat file'
    records = client.watch("box", ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path)])
    (record,) = opens(records, b"file")
    found = (tmp_path / "source/deep/file").stat()
    assert record.resolved == os.fsencode(tmp_path / "outer/inner/deep/file")
    assert record.args[3:5] == (found.st_dev, found.st_ino)
    assert execs(records)[-1].cwd == os.fsencode(tmp_path / "outer/inner/deep")


def test_a_path_is_told_from_the_tasks_own_root(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code = "import os, sys\nos.chroot(sys.argv[1])\nos.open('/file', 0)\nos.open('/', 0)"
    records = client.watch("box", python(code, str(tmp_path)))
    assert [record.resolved for record in opens(records, b"/file") + opens(records, b"/")] == [b"/file", b"/"]


def test_an_object_outside_the_tasks_root_is_flagged(client: Client, tmp_path: Path) -> None:
    code = "import os, sys\nd = os.open('/etc', 0)\nos.chroot(sys.argv[1])\nos.open('hostname', 0, dir_fd=d)"
    (record,) = opens(client.watch("box", python(code, str(tmp_path))), b"hostname")
    assert Flag.UNRESOLVED in record.flags
    assert record.dirfd >= 0
    assert record.args[4] == Path("/etc/hostname").stat().st_ino


def test_odd_and_long_names_are_kept_whole(client: Client, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/new\nline\x1b[2J\xff"
    code = (
        "import os, sys\nos.open(os.fsencode(sys.argv[1]), os.O_CREAT | os.O_RDWR)\nos.chdir(sys.argv[2])\n"
        "for _ in range(200):\n  os.mkdir('d'); os.chdir('d')\nos.open('leaf', os.O_CREAT | os.O_RDWR, 0o600)\n"
        "try: os.open('x' * 4095, 0)\nexcept OSError: pass\n"
        "try: os.open('y' * 4096, 0)\nexcept OSError: pass\n"
        "try: os.open('z' * 9000, 0)\nexcept OSError: pass\n"
    )
    records = client.watch("box", python(code, odd, str(tmp_path)))
    assert opens(records, odd)[0].resolved == odd
    (leaf,) = opens(records, b"leaf")
    assert leaf.resolved == os.fsencode(tmp_path) + b"/d" * 200 + b"/leaf"
    assert (leaf.args[1] & os.O_ACCMODE, leaf.args[2]) == (os.O_RDWR, 0o600)
    (longest,) = opens(records, b"x" * 4095)
    assert (longest.error, Flag.TRUNCATED in longest.flags) == (errno.ENAMETOOLONG, False)
    cut = [record for record in records if record.given and record.given[:1] in b"yz" and len(record.given) == 4096]
    assert [(record.error, Flag.TRUNCATED in record.flags) for record in cut] == [(errno.ENAMETOOLONG, True)] * 2


def test_a_path_too_deep_is_cut_and_says_so(client: Client, tmp_path: Path) -> None:
    code = (
        "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(300):\n  os.mkdir('d'); os.chdir('d')\n"
        "os.open('leaf', os.O_CREAT)"
    )
    (leaf,) = opens(client.watch("box", python(code, str(tmp_path))), b"leaf")
    assert Flag.TRUNCATED in leaf.flags
    assert leaf.resolved is not None
    assert leaf.resolved.endswith(b"/d" * 255 + b"/leaf")
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_path_rewritten_while_it_is_read_never_hides_the_object(client: Client, tmp_path: Path) -> None:
    (tmp_path / "aaaa").write_text("a")
    (tmp_path / "bbbb").write_text("b")
    code = """
import ctypes, os, sys, threading, time
a, b = (os.fsencode(sys.argv[1]) + b"/" + name for name in (b"aaaa", b"bbbb"))
buffer = ctypes.create_string_buffer(a)
libc = ctypes.CDLL(None)
stop = False
def flip():
    while not stop:
        ctypes.memmove(buffer, a, len(a)); ctypes.memmove(buffer, b, len(b))
sys.setswitchinterval(1e-6)
thread = threading.Thread(target=flip); thread.start()
seen, deadline = [], time.monotonic() + 10      # threads of one interpreter can hold each other up for long
while len(seen) < 3000 and time.monotonic() < deadline:
    fd = libc.open(buffer, 0)
    seen.append(os.fstat(fd).st_ino); os.close(fd)
stop = True; thread.join()
print(*seen)
"""
    client.create("box", ring_bytes=1 << 22)
    told = client.run("box", [sys.executable, "-c", code, str(tmp_path)])
    client.seal("box")
    inodes = [int(word) for word in told.stdout.split()]
    raced = [
        record
        for record in client.records("box")
        if record.kind == Kind.OPEN and (record.given or b"")[:-4] == os.fsencode(tmp_path) + b"/"
    ]
    assert [record.args[4] for record in raced] == inodes
    for record in raced:
        assert record.resolved is not None
        name = Path(os.fsdecode(record.resolved))
        assert name.stat().st_ino == record.args[4]
        assert record.given_exit is None or Flag.TOCTOU in record.flags


def test_a_path_changed_during_the_call_is_flagged_with_both_views(client: Client, tmp_path: Path) -> None:
    code = """
import ctypes, os, sys, threading, time
fifo, other = (os.fsencode(sys.argv[1]) + name for name in (b"/fifo", b"/innocent"))
os.mkfifo(fifo)
buffer = ctypes.create_string_buffer(fifo, 4096)
reader = threading.Thread(target=lambda: ctypes.CDLL(None).open(buffer, os.O_RDONLY))
reader.start()                                  # waits in open for a writer
time.sleep(0.3)
buffer.value = other
os.open(fifo, os.O_WRONLY)
reader.join()
"""
    records = client.watch("box", [sys.executable, "-c", code, str(tmp_path)])
    (record,) = [record for record in opens(records, os.fsencode(tmp_path / "fifo")) if record.args[1] == 0]
    assert Flag.TOCTOU in record.flags
    assert record.given_exit == os.fsencode(tmp_path / "innocent")
    assert record.resolved == os.fsencode(tmp_path / "fifo")


def test_a_string_that_cannot_be_read_is_counted_as_partial(client: Client) -> None:
    client.create("box")
    client.run("box", python("import os, ctypes\nctypes.CDLL(None).open(ctypes.c_void_p(8), 0)"))
    counts = client.seal("box")
    (record,) = [record for record in client.records("box") if record.error == errno.EFAULT]
    assert (record.given, record.given_exit) == (None, None)
    assert counts["open"].partial == 1
    assert counts["open"].seen == counts["open"].delivered


def test_what_the_box_wrote_itself_is_marked_upper(client: Client, tmp_path: Path) -> None:
    if not all_types().has_struct("ovl_inode"):
        pytest.skip("the overlay file system of this kernel is a module that does not tell its types (before 5.11)")
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower/old").write_text("x")
    script = (
        'mount -t overlay none -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged" && cd "$1/merged"'
        " && cat old && cp /bin/true mine && ./mine"
    )
    records = client.watch("box", ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path)])
    assert Flag.UPPER not in opens(records, b"old")[0].flags
    assert Flag.UPPER in opens(records, b"mine")[-1].flags
    ran = execs(records)
    assert ran[-1].given == b"./mine"
    assert Flag.UPPER in ran[-1].flags
    assert not any(Flag.UPPER in record.flags for record in ran[:-1])


def test_programs_without_a_name_are_marked(client: Client, tmp_path: Path) -> None:
    copy = tmp_path / "gone"
    copy.write_bytes(Path("/bin/true").read_bytes())
    copy.chmod(0o755)
    code = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.unlink(sys.argv[1])
memory = os.memfd_create("hidden")
os.write(memory, open("/bin/true", "rb").read())
for number in (fd, memory):
    if os.fork() == 0:
        os.execve(number, ["x"], {})
    os.wait()
"""
    gone, hidden = execs(client.watch("box", python(code, str(copy))))[-2:]
    assert all(Flag.DELETED in record.flags and record.args[2] == 0 for record in (gone, hidden))
    assert gone.resolved == os.fsencode(copy)
    assert b"memfd:hidden" in (hidden.resolved or b"")


def test_a_long_argument_is_whole_and_a_longer_list_is_cut_and_says_so(client: Client) -> None:
    whole = "a" * 100_000
    first = client.watch("box", ["/bin/true", whole])[0]
    assert first.argv == (b"/bin/true", whole.encode())
    assert Flag.TRUNCATED not in first.flags
    first = client.watch("box", ["/bin/true", whole, whole])[0]
    assert Flag.TRUNCATED in first.flags
    assert first.argv is not None
    assert sum(len(word) + 1 for word in first.argv) in (131_072, 131_073)


def test_a_connect_tells_address_socket_and_result(client: Client) -> None:
    code = """
import socket
for family, address in ((socket.AF_INET, ("192.0.2.1", 443)), (socket.AF_INET6, ("2001:db8::1", 8443))):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            socket.socket(family, kind).connect(address)
        except OSError as e: pass
"""
    records = client.watch("box", ["unshare", "-n", sys.executable, "-c", code])
    found = [record for record in records if record.kind == Kind.CONNECT and record.args[0] in (2, 10)]
    assert [(record.args[0], record.args[1], record.args[2], record.args[4]) for record in found] == [
        (socket.AF_INET, 443, socket.IPPROTO_TCP, socket.SOCK_STREAM),
        (socket.AF_INET, 443, socket.IPPROTO_UDP, socket.SOCK_DGRAM),
        (socket.AF_INET6, 8443, socket.IPPROTO_TCP, socket.SOCK_STREAM),
        (socket.AF_INET6, 8443, socket.IPPROTO_UDP, socket.SOCK_DGRAM),
    ]
    assert {record.error for record in found} <= {errno.ENETUNREACH, errno.EADDRNOTAVAIL}
    assert found[0].addr is not None
    assert found[0].addr[4:8] == socket.inet_aton("192.0.2.1")


def test_a_connect_under_way_keeps_einprogress(client: Client) -> None:
    code = """
import socket, subprocess
subprocess.run("ip link set lo up && ip route add local 192.0.2.0/24 dev lo", shell=True, check=True)
listener = socket.create_server(("192.0.2.1", 7000))
s = socket.socket(); s.setblocking(False)
try: s.connect(("192.0.2.1", 7000))
except BlockingIOError: pass
u = socket.socket(socket.AF_UNIX)
try: u.connect("\\0abstract")
except OSError: pass
"""
    records = client.watch("box", ["unshare", "-n", sys.executable, "-c", code])
    found = [record for record in records if record.kind == Kind.CONNECT]
    assert [record.error for record in found if record.args[1] == 7000] == [errno.EINPROGRESS, 0]
    assert [record.error for record in found if record.addr == b"\1\0\0abstract"] == [errno.ECONNREFUSED]


def test_the_family_tree_and_the_ways_to_end_are_on_record(client: Client) -> None:
    code = """
import os, signal, threading
a = os.fork()
if a == 0: os._exit(3)
os.waitpid(a, 0)
b = os.fork()
if b == 0: os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(b, 0)
t = threading.Thread(target=lambda: None); t.start(); t.join()
print(os.getpid(), a, b)
"""
    client.create("box")
    told = client.run("box", [sys.executable, "-c", code])
    client.seal("box")
    records = client.records("box")
    own, first, second = (int(word) for word in told.stdout.split())
    forks = [record for record in records if record.kind == Kind.FORK]
    assert [record.args[0] for record in forks] == [first, second, own]
    assert [Flag.THREAD in record.flags for record in forks] == [False, False, True]
    assert forks[2].args[1] != own
    assert forks[2].args[3] & 0x10000  # CLONE_THREAD
    exits = {(record.pid, record.tid): record for record in records if record.kind == Kind.EXIT}
    assert exits[first, first].args[:2] == (3, 0)
    assert exits[second, second].args[:2] == (0, signal.SIGKILL)
    assert Flag.THREAD in exits[own, forks[2].args[1]].flags
    assert Flag.THREAD not in exits[own, own].flags
    assert exits[first, first].identity == forks[0].child
    assert (exits[first, first].ppid, exits[first, first].parent_start_ns) == forks[0].identity


def test_a_32_bit_call_from_a_64_bit_program_is_seen(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
area = libc.mmap(None, 8192, 7, 0x62, -1, 0)          # MAP_32BIT, private, anonymous; read, write, execute
assert area < 1 << 32
path = os.fsencode(sys.argv[1]) + b"\\0"
ctypes.memmove(area + 4096, path, len(path))
# push rbx; mov eax, 5; mov ebx, path; xor ecx, ecx; int 0x80; pop rbx; ret
text = b"\\x53\\xb8\\x05\\0\\0\\0\\xbb" + (area + 4096).to_bytes(4, "little") + b"\\x31\\xc9\\xcd\\x80\\x5b\\xc3"
ctypes.memmove(area, text, len(text))
print(ctypes.CFUNCTYPE(ctypes.c_int)(area)())
"""
    client.create("box")
    told = client.run("box", [sys.executable, "-c", code, str(tmp_path / "file")])
    if told.returncode or int(told.stdout) < 0:
        pytest.skip("this kernel has no 32-bit calls (IA32_EMULATION)")
    client.seal("box")
    (record,) = opens(client.records("box"), os.fsencode(tmp_path / "file"))
    assert Flag.COMPAT32 in record.flags
    assert (record.args[5], record.resolved) == (5, os.fsencode(tmp_path / "file"))


def test_openat2_and_creat_are_seen_with_their_flags(client: Client, tmp_path: Path) -> None:
    code = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
path = os.fsencode(sys.argv[1])
libc.creat(path + b"/made", 0o640)
how = struct.pack("QQQ", os.O_RDWR | os.O_CREAT, 0o604, 0)
libc.syscall(437, -100, path + b"/two", how, len(how))
"""
    records = client.watch("box", [sys.executable, "-c", code, str(tmp_path)])
    (made,), (two,) = (opens(records, os.fsencode(tmp_path / name)) for name in ("made", "two"))
    assert made.args[1:3] == (os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    assert two.args[1:3] == (os.O_RDWR | os.O_CREAT, 0o604)
    assert [made.args[5], two.args[5]] == [85 if made.args[5] == 85 else 257, 437]


def test_a_call_that_seccomp_refuses_is_on_record(client: Client, tmp_path: Path) -> None:
    code = """
import errno, os, sys, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(errno.EACCES), "openat", pyseccomp.Arg(2, pyseccomp.EQ, os.O_WRONLY | os.O_CLOEXEC))
rules.load()
try: os.open(sys.argv[1], os.O_WRONLY)
except PermissionError: pass
"""
    records = client.watch("box", [sys.executable, "-c", code, str(tmp_path / "refused")])
    (record,) = [record for record in records if Flag.NO_ENTRY in record.flags and record.error == errno.EACCES]
    assert (record.given, record.given_exit) == (None, os.fsencode(tmp_path / "refused"))


def test_a_process_in_a_child_cgroup_is_still_in_the_box(client: Client, tmp_path: Path) -> None:
    box = client.create("box").box
    child = Path(box.cgroup_path) / "below" / "deeper"
    child.mkdir(parents=True)
    script = 'echo $$ > "$1/cgroup.procs"; exec cat "$2"'
    client.run("box", ["sh", "-c", script, "sh", str(child), "/etc/hostname"])
    identity = child.stat().st_ino
    counts = client.seal("box")
    last = execs(client.records("box"))[-1]
    assert (last.argv, last.cgroup) == ((b"cat", b"/etc/hostname"), identity)
    assert counts["exec"].delivered == len(execs(client.records("box")))


def test_nothing_outside_a_box_is_on_record(client: Client) -> None:
    client.create("box")
    subprocess.run(["/bin/true"], check=True)
    assert ctypes.CDLL(None).open(b"/nonexistent", 0) == -1
    counts = client.seal("box")
    assert client.records("box") == []
    assert not any(count.seen for count in counts.values())
