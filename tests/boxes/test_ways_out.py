"""Ways out of a box that the red team found open once. `tests/redteam` has all of them; these are the engines' own."""

from __future__ import annotations

import fcntl
import json
import os
import socket

import pytest
from caisson_runner.boxes.engine import Bind, Command
from caisson_runner.boxes.errors import BoxError

REACH = r"""
import json, os, socket
def attempt(work, *words):
    try:
        work(*words)
    except OSError as error:
        return error.errno
    return 0
def say(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as one:
        return attempt(one.connect, name) or attempt(one.send, b"out")
pipe = attempt(lambda: os.write(os.open("/shared/pipe", os.O_WRONLY | os.O_NONBLOCK), b"out"))
print(json.dumps([say(1, "/shared/stream"), say(2, "/shared/datagram"), pipe, open("/shared/file").read()]))
"""
SOCKETS = r"""
import errno, json, socket
def made(family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
INET, SIX = socket.AF_INET, socket.AF_INET6
print(json.dumps({
    "usual": [made(INET, 1), made(INET, 2), made(SIX, 1, 6), made(SIX, 2, 17), made(INET, 1 | socket.SOCK_CLOEXEC),
              made(socket.AF_UNIX, 1), made(socket.AF_NETLINK, 3)],
    "udplite": made(INET, 2, 136), "udplite6": made(SIX, 2, 136), "mptcp": made(INET, 1, 262),
    "mptcp6": made(SIX, 1, 262), "sctp": made(INET, 1, 132), "sctp packets": made(INET, 5, 132),
    "dccp": made(INET, 6, 33), "ping": made(INET, 2, 1),
    "ping6": made(SIX, 2, 58), "old packet": made(INET, 10, 768), "high bits": made(INET, 2 | 1 << 20, 0),
}))
"""


async def test_sockets_and_pipes_in_a_shown_folder_are_no_way_out(engine, snapshot, py, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("shown")
    os.mkfifo(shared / "pipe")
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        here = os.open(shared, os.O_PATH)  # a long path would not fit into a socket's name
        stream.bind(f"/proc/self/fd/{here}/stream")
        stream.listen()
        datagram.bind(f"/proc/self/fd/{here}/datagram")
        os.close(here)
        reader = os.open(shared / "pipe", os.O_RDWR | os.O_NONBLOCK)
        for path in shared.iterdir():
            path.chmod(0o666 if path.is_file() else 0o777)
        shared.chmod(0o755)
        stream.setblocking(False)
        datagram.setblocking(False)
        async with engine.fork(snapshot, binds=[Bind(shared, "/shared")]) as box:
            done = await py(box, REACH)
        *numbers, shown = json.loads(done.stdout)
        assert shown == "shown" and all(numbers), numbers
        with pytest.raises(BlockingIOError):
            stream.accept()
        with pytest.raises(BlockingIOError):
            datagram.recv(9)
        with pytest.raises(BlockingIOError):
            os.read(reader, 9)
        os.close(reader)


LOCKED = "import fcntl; fcntl.flock(open('/usr/bin/env', 'rb'), fcntl.LOCK_EX | fcntl.LOCK_NB); print('locked')"
WATCHED = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert fd >= 0 and libc.inotify_add_watch(fd, b"/usr/bin/env", 0x21) > 0
print("watching", flush=True)
sys.stdin.readline()
try:
    print(len(os.read(fd, 4096)) > 0)
except BlockingIOError:
    print(False)
"""


async def test_neither_locks_nor_watches_on_the_hosts_files_reach_beyond_the_box(engine, snapshot, py, sh):
    with open("/usr/bin/env", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        async with engine.fork(snapshot) as box, engine.fork(snapshot) as other:
            assert (await py(box, LOCKED)).stdout == b"locked\n"
            watcher = await box.start(Command(("/usr/bin/python3", "-c", WATCHED), stdin_pipe=True))
            assert await watcher.stdout.readline() == b"watching\n"
            assert (await sh(other, "cat /usr/bin/env | wc -c")).ok
            file.read(9)
            watcher.stdin.write(b"\n")
            assert await watcher.stdout.readline() == b"False\n"


async def test_a_socket_itself_is_not_shown(engine, snapshot, tmp_path):
    with socket.socket(socket.AF_UNIX) as stream:
        here = os.open(tmp_path, os.O_PATH)
        stream.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
        with pytest.raises(BoxError, match=r"only files and folders|could not be made"):
            async with engine.fork(snapshot, binds=[Bind(tmp_path / "s", "/s")]):
                pass


async def test_transports_beyond_tcp_and_udp_are_refused(engine, snapshot, py):
    async with engine.fork(snapshot) as box:
        found = json.loads((await py(box, SOCKETS)).stdout)
    assert found.pop("usual") == [""] * 7
    assert set(found.values()) <= {"ENOSYS", "EPERM", "EINVAL"}, found
