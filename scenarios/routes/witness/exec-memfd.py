"""exec-memfd: A program that lies in no file system.

Does: copies a program into a memfd and executes the descriptor with an empty path. Must be seen: the exec, and that its
object has no name. Needs: nothing.
"""

import ctypes
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


os.mkdir(HERE)
fd = os.memfd_create(NONCE)
with open("/bin/true", "rb") as file:
    os.write(fd, file.read())
argv = (ctypes.c_char_p * 3)(b"true", NONCE.encode(), None)
in_child(lambda: call(322, fd, b"", argv, (ctypes.c_char_p * 1)(None), 0x1000))
say("exec", "execveat", object=b"memfd:" + NONCE.encode(), argv=[b"true", NONCE.encode()], **identity(fd))
end()
