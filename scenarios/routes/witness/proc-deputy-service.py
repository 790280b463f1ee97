"""proc-deputy-service: Somebody else does the work.

Does: asks a service (a daemon made beforehand, in the same box) over a socket to open a file. Must be seen: the request,
and the service's own open. Needs: nothing.
"""

import json
import os
import socket
import stat
import struct
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


def touch(mark):
    """Open a name nobody else knows and that is not there: it tells who we are."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except OSError:
        pass


def in_child(work):
    """Do the work in a child and wait for it; its number."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return child


def unix(name):
    """A unix address as Python passes it: paths with their NUL, abstract names without."""
    return struct.pack("<H", socket.AF_UNIX) + name + (b"" if name.startswith(b"\0") else b"\0")


os.mkdir(HERE)
path = make(b"secret")
found = os.stat(path)
name = b"\0" + NONCE.encode()
server = socket.socket(socket.AF_UNIX)
server.bind(name)
server.listen()


def daemonise():
    if not os.fork():
        one, _ = server.accept()
        touch(one.recv(4096))
        one.send(b"done")


in_child(daemonise)
client = socket.socket(socket.AF_UNIX)
client.connect(name)
client.send(path)
client.recv(16)
say("connect", "connect", addr=unix(name))
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
end()
