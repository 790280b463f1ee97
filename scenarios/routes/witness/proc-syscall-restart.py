"""proc-syscall-restart: A call that is interrupted and goes on.

Does: opens a pipe by its name and is interrupted by a signal while it waits. Must be seen: one open, not two.
Needs: nothing.
"""

import ctypes
import errno
import json
import os
import signal
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
path = HERE + b"/pipe"
os.mkfifo(path)
found = os.stat(path)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
child = os.fork()
if not child:
    time.sleep(0.1)
    os.kill(os.getppid(), signal.SIGALRM)
    time.sleep(0.1)
    other = os.open(b"/proc/self/cwd", os.O_RDONLY)
    os.chdir(HERE)
    os.open(b"pipe", os.O_WRONLY)
    os._exit(0)
fd = call(257, -100, path, os.O_RDONLY, 0)
os.waitpid(child, 0)
needs(fd, "openat")
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
end()
