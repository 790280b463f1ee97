"""proc-clone-untraced: A child that asks not to be traced.

Does: clone with CLONE_UNTRACED; the child opens a file. Must be seen: fork, open, exit. Needs: nothing.
"""

import ctypes
import json
import os
import signal
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


def touch(mark):
    """Open a name nobody else knows and that is not there: it tells who we are."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except OSError:
        pass


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
path = make(b"secret")
mark = HERE + b"/child"
found = os.stat(path)
child = call(56, 0x800000 | signal.SIGCHLD, 0, 0, 0, 0)
if not child:
    touch(mark)
    touch(path)
    os._exit(0)
os.waitpid(child, 0)
say("fork", "clone", child=child, mark=mark)
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
say("exit", "exit", mark=mark)
end()
