"""open-openat: Plain opens: open, openat, and one that fails.

Does: opens a file of its own by both calls, and a name that is not there. Must be seen: each, with result and object.
Needs: nothing.
"""

import ctypes
import json
import os
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


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
path = make(b"secret")
if CASE == "failed":
    gone = HERE + b"/absent"
    say("open", "openat", path=gone, errno=attempt(os.open, gone, os.O_RDONLY))
elif CASE == "open":
    fd = call(2, path, os.O_RDONLY, 0)
    say("open", "open", path=path, object=path, **identity(fd))
else:
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 1)
    say("open", "openat", path=path, object=path, **identity(fd))
end()
