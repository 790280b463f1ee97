"""fd-pidfd-getfd: A descriptor copied out of a sibling.

Does: a child opens the file, the parent takes the descriptor with pidfd_getfd. Must be seen: what was taken.
Needs: ptrace access to the sibling.
"""

import ctypes
import errno
import json
import os
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
reader, writer = os.pipe()
child = os.fork()
if not child:
    fd = os.open(path, os.O_RDONLY)
    say("open", "openat", path=path, object=path, **identity(fd))
    os.write(writer, b"%d" % fd)
    time.sleep(30)
    os._exit(0)
number = int(os.read(reader, 16))
fd = needs(call(438, needs(call(434, child, 0), "pidfd_open"), number, 0), "pidfd_getfd")
say("pass", "pidfd_getfd", object=path, **identity(fd))
os.kill(child, 9)
os.waitpid(child, 0)
end()
