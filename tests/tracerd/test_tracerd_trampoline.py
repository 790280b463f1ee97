"""What the trampoline tier promises beyond the tracepoints: names, addresses and objects the caller cannot forge."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import ChangeOp, Flag, Kind
from caisson_tracerd import layout, trial
from caisson_tracerd.pins import SYSTEM_PYTHON
from tracerd_rig import SLOW, why_no_trampoline, why_not

if TYPE_CHECKING:
    from tracerd_rig import Client

pytestmark = [pytest.mark.root, pytest.mark.bpf]

TIERS = ("trampoline",)

# Opens through io_uring: one ring, one submission at a time, inline or in a worker.
RING = """
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
ring = libc.syscall(425, 4, parameters)
assert ring >= 0, os.strerror(ctypes.get_errno())
entries, = struct.unpack_from("I", parameters, 0)
sq = struct.unpack_from("8I", parameters, 40)   # head, tail, mask, entries, flags, dropped, array
cq = struct.unpack_from("8I", parameters, 80)   # head, tail, mask, entries, overflow, cqes
size = max(sq[6] + entries * 4, cq[5] + 2 * entries * 16)
area = mmap.mmap(ring, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
sqes = mmap.mmap(ring, entries * 64, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0x10000000)
def word(at): return struct.unpack_from("I", area, at)[0]
def openat(path, flags, mode, how):
    held = ctypes.create_string_buffer(path)
    tail = word(sq[1]); slot = tail & word(sq[2])
    entry = struct.pack("BBHiQQIIQ", 18, how, 0, -100, 0, ctypes.addressof(held), mode, flags, 7)
    sqes[slot * 64:slot * 64 + 64] = entry.ljust(64, b"\\0")
    struct.pack_into("I", area, sq[6] + slot * 4, slot)
    struct.pack_into("I", area, sq[1], tail + 1)
    assert libc.syscall(426, ring, 1, 1, 1, None, 0) == 1
    head = word(cq[0])
    result = struct.unpack_from("i", area, cq[5] + (head & word(cq[2])) * 16 + 8)[0]
    struct.pack_into("I", area, cq[0], head + 1)
    return result
for how in (0, 16):   # 16: IOSQE_ASYNC
    print(openat(os.fsencode(sys.argv[1]) + b"/there", os.O_RDONLY, 0, how) >= 0)
    print(openat(os.fsencode(sys.argv[1]) + b"/absent", os.O_RDONLY, 0, how))
"""


def test_opens_through_io_uring_are_told_once_each_with_object_and_result(client: Client, tmp_path: Path) -> None:
    client.needs("open")
    (tmp_path / "there").write_text("x")
    client.create("box")
    told = client.run("box", [sys.executable, "-c", RING, str(tmp_path)], stderr=-2)
    if told.returncode:
        pytest.skip(f"io_uring cannot be used here: {told.stdout[-200:]!r}")
    assert told.stdout.split() == [b"True", b"-2", b"True", b"-2"]
    client.seal("box")
    found = [one for one in client.records("box") if (one.given or b"").startswith(os.fsencode(tmp_path) + b"/")]
    there = (tmp_path / "there").stat()
    assert [(one.given or b"").rpartition(b"/")[2] for one in found] == [b"there", b"absent"] * 2
    assert all(one.kind == Kind.OPEN and Flag.IO_URING in one.flags for one in found)
    assert [one.error for one in found] == [0, errno.ENOENT] * 2
    assert [one.args[3:5] for one in found if not one.error] == [(there.st_dev, there.st_ino)] * 2
    assert [one.resolved for one in found if not one.error] == [os.fsencode(tmp_path / "there")] * 2


def test_a_path_rewritten_by_another_thread_is_recorded_as_the_kernel_took_it(client: Client, tmp_path: Path) -> None:
    client.needs("open")
    (tmp_path / "aaaa").write_text("a")
    (tmp_path / "bbbb").write_text("b")
    code = """
import ctypes, os, sys, threading
a, b = (os.fsencode(sys.argv[1]) + b"/" + name for name in (b"aaaa", b"bbbb"))
buffer = ctypes.create_string_buffer(a)
libc = ctypes.CDLL(None)
stop = False
def flip():
    while not stop:
        ctypes.memmove(buffer, a, len(a)); ctypes.memmove(buffer, b, len(b))
thread = threading.Thread(target=flip); thread.start()
sys.setswitchinterval(1e-6)
opened = 0
for _ in range(1500):
    fd = libc.open(buffer, 0)
    if fd >= 0:
        opened += 1; os.close(fd)
stop = True; thread.join()
print(opened)
"""
    client.create("box", ring_bytes=1 << 22)
    told = client.run("box", [sys.executable, "-c", code, str(tmp_path)])
    counts = client.seal("box")
    raced = [one for one in client.records("box") if (one.resolved or b"")[-5:] in (b"/aaaa", b"/bbbb")]
    assert len(raced) == int(told.stdout) > 1000
    assert all(Flag.KERNEL in one.flags for one in raced)
    assert [one for one in raced if one.given != one.resolved] == []
    assert counts["open"].seen == counts["open"].delivered


def test_an_address_rewritten_by_another_thread_is_recorded_as_the_kernel_took_it(client: Client) -> None:
    client.needs("connect")
    code = """
import ctypes, socket, struct, sys, threading
libc = ctypes.CDLL(None)
first, second = (struct.pack(">HHI8x", 0x0200, port, 0x7f000001) for port in (1111, 2222))
buffer = ctypes.create_string_buffer(first, 16)
stop = False
def flip():
    while not stop:
        ctypes.memmove(buffer, first, 16); ctypes.memmove(buffer, second, 16)
thread = threading.Thread(target=flip); thread.start()
sys.setswitchinterval(1e-6)
seen = []
for _ in range(500):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        assert libc.connect(one.fileno(), buffer, 16) == 0
        seen.append(one.getpeername()[1])
stop = True; thread.join()
print(*seen)
"""
    client.create("box", ring_bytes=1 << 22)
    told = client.run("box", [sys.executable, "-c", code])
    client.seal("box")
    ports = [one.args[1] for one in client.records("box") if one.kind == Kind.CONNECT and one.args[0] == 2]
    assert ports == [int(word) for word in told.stdout.split()]
    assert set(ports) == {1111, 2222}


def test_a_refused_exec_carries_the_kernels_copy_of_the_name(client: Client, tmp_path: Path) -> None:
    client.needs("open")
    (tmp_path / "plain").write_text("x")
    long = tmp_path / ("n" * 200) / ("m" * 200)
    long.parent.mkdir()
    long.write_text("x")
    code = "import os, sys\nfor name in sys.argv[1:]:\n  try: os.execv(name, ['x'])\n  except OSError: pass"
    names = [str(tmp_path / "plain"), str(long)]
    records = client.watch("box", [sys.executable, "-c", code, *names])
    found = [one for one in records if one.kind == Kind.EXEC and one.error]
    assert [(one.given, one.error) for one in found] == [(os.fsencode(name), errno.EACCES) for name in names]
    assert all(Flag.KERNEL in one.flags for one in found)


def test_an_open_that_the_kernel_never_began_is_told_by_the_end_of_its_call(client: Client) -> None:
    code = "import ctypes\nctypes.CDLL(None).open(ctypes.c_void_p(8), 0)"
    client.create("box")
    client.run("box", [sys.executable, "-c", code])
    counts = client.seal("box")
    (one,) = [one for one in client.records("box") if one.error == errno.EFAULT]
    assert Flag.KERNEL not in one.flags
    assert counts["open"].seen == counts["open"].delivered


def test_the_manifest_names_the_tier_and_every_hook(client: Client) -> None:
    info = client.stub.GetInfo(pb.GetInfoRequest(), timeout=10 * SLOW)
    manifest = json.loads(info.manifest_json)
    assert info.tier == manifest["tier"] == "trampoline"
    assert "sys_enter" in info.hooks
    for hook in manifest["trampoline"]:
        assert bool(hook["reason"]) != hook["ok"]
        assert bool(hook["lost"]) != hook["ok"]
    assert any(hook["ok"] for hook in manifest["trampoline"])
    assert [hook["hook"] for hook in manifest["trampoline"]] == [hook.name for hook in trial.HOOKS]


def test_a_change_names_the_object_it_was_about_whatever_links_led_there(client: Client, tmp_path: Path) -> None:
    client.needs("unlink", "rmdir", "mkdir", "mknod", "symlink", "link", "rename", "truncate", "chmod", "chown")
    deep = tmp_path / "real/deep"
    deep.mkdir(parents=True)
    (tmp_path / "way").symlink_to("real")
    (deep / "a").write_text("x")
    code = """
import os, sys
os.chdir(sys.argv[1])
os.chmod("way/deep/a", 0o600); os.truncate("way/deep/a", 1); os.chown("way/deep/a", 0, 0)
os.link("way/deep/a", "way/deep/b"); os.rename("way/deep/a", "way/deep/z"); os.unlink("way/deep/b")
os.mkdir("way/deep/d"); os.rmdir("way/deep/d"); os.symlink("z", "way/deep/s"); os.mkfifo("way/deep/p")
try: os.unlink("way/deep/absent")
except OSError: pass
"""
    inode = (deep / "a").stat().st_ino
    records = client.watch("box", [sys.executable, "-c", code, str(tmp_path)])
    changes = [
        one for one in records if one.kind == Kind.CHANGE and b"way/deep/" in (one.given or b"") + (one.new or b"")
    ]
    told = [
        (ChangeOp(one.args[0]).name, (one.resolved or b"").rpartition(b"/")[2].decode(), one.error) for one in changes
    ]
    assert told == [
        ("CHMOD", "a", 0),
        ("TRUNCATE", "a", 0),
        ("CHOWN", "a", 0),
        ("LINK", "a", 0),
        ("RENAME", "a", 0),
        ("UNLINK", "b", 0),
        ("MKDIR", "d", 0),
        ("RMDIR", "d", 0),
        ("SYMLINK", "s", 0),
        ("MKNOD", "p", 0),
        ("UNLINK", "", errno.ENOENT),
    ]
    found = [one for one in changes if one.resolved]
    assert all(Flag.KERNEL in one.flags and Path(os.fsdecode(one.resolved or b"")).parent == deep for one in found)
    assert [one.args[4] for one in found[:6]] == [inode] * 6


def test_a_tier_that_does_not_work_here_is_refused_with_the_reason(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    if why_no_trampoline() is None:
        pytest.skip("the trampoline tier works on this kernel")
    command = [SYSTEM_PYTHON, "-I", str(layout.loader()), "--sources", str(layout.sources()), "--level", "3"]
    command += ["--tier", "trampoline", "--pins", str(tmp_path / "pins"), "--manifest", str(tmp_path / "manifest")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("the trampoline tier does not work here: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_doctor_tries_each_hook_and_says_what_is_lost_without_it() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-m", "caisson_tracerd.cli", "doctor", "--json"], capture_output=True)
    hooks = [one for one in json.loads(done.stdout) if one["name"].startswith("hook ")]
    assert [one["name"].removeprefix("hook ") for one in hooks] == [hook.name for hook in trial.HOOKS]
    assert all(not one["needed"] for one in hooks)
    assert all(one["detail"].endswith("fires") if one["ok"] else "without it" in one["remedy"] for one in hooks)
