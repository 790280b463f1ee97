"""fd-fanotify: A descriptor delivered by fanotify.

Does: marks its own folder for events with descriptors. Must be seen: the descriptors delivered.
Needs: handles, CAP_SYS_ADMIN.
"""

import ctypes
import errno
import json
import os
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


def identity(fd):
    found = os.fstat(fd)
    return {"dev": found.st_dev, "ino": found.st_ino}


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
group = needs(call(300, 4, 0), "fanotify_init")
needs(call(301, group, 1, 0x20, -100, HERE), "fanotify_mark")
in_child(lambda: os.open(path, os.O_RDONLY))
event = os.read(group, 256)
fd = struct.unpack_from("<i", event, 16)[0]
say("pass", "fanotify", object=path, **identity(fd))
end()
