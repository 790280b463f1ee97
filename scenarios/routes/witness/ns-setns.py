"""ns-setns: Into another's namespace.

Does: joins the user namespace of a child, then opens its file. Must be seen: the call, and the open after it.
Needs: namespaces.
"""

import ctypes
import errno
import json
import os
import socket
import stat
import sys
import time

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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


def needs(result, what):
    """The result, or the end of the route where this box may not do it."""
    if result < 0:
        end("inapplicable", f"{what}: {errno.errorcode.get(-result, -result)}")
    return result


os.mkdir(HERE)
path = make(b"secret")
ours, theirs = socket.socketpair()
child = os.fork()
if not child:
    result = call(272, 0x10000000 | 0x4000000)
    theirs.send(b"%d" % -result)
    time.sleep(30)
    os._exit(0)
if wrong := int(ours.recv(16)):
    os.kill(child, 9)
    end("inapplicable", f"unshare: {errno.errorcode[wrong]}")
result = call(308, os.open(f"/proc/{child}/ns/user", os.O_RDONLY), 0x10000000)
os.kill(child, 9)
os.waitpid(child, 0)
needs(result, "setns")
say("cross", "setns", flags=0x10000000)
fd = os.open(path, os.O_RDONLY)
say("open", "openat", path=path, object=path, **identity(fd))
end()
