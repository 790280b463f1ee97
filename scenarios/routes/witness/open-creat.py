"""open-creat: creat(2), forgotten in the same way.

Does: makes a file in its own folder. Must be seen: the open. Needs: nothing.
"""

import ctypes
import errno
import json
import os
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


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
path = HERE + b"/made"
fd = needs(call(85, path, 0o600), "creat")
say("open", "creat", path=path, object=path, **identity(fd))
end()
