"""fd-scm-rights: A descriptor received over a unix socket.

Does: a child opens the file and sends the descriptor; the parent never opens it. Must be seen: what was received, by
whom. Needs: nothing.
"""

import json
import os
import socket
import stat
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


def make(name):
    """A file of our own, made without opening it."""
    os.mknod(HERE + b"/" + name, 0o644 | stat.S_IFREG)
    return HERE + b"/" + name


def identity(fd):
    found = os.fstat(fd)
    return {"dev": found.st_dev, "ino": found.st_ino}


os.mkdir(HERE)
path = make(b"secret")
ours, theirs = socket.socketpair()
if not os.fork():
    fd = os.open(path, os.O_RDONLY)
    say("open", "openat", path=path, object=path, **identity(fd))
    socket.send_fds(theirs, [b"x"], [fd])
    os._exit(0)
_, fds, _, _ = socket.recv_fds(ours, 1, 1)
os.wait()
say("pass", "recvmsg", object=path, **identity(fds[0]))
end()
