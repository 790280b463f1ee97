"""open-toctou-flip: Somebody rewrites the path while the kernel reads it.

Does: a second process exchanges one letter of a path in shared memory while the first opens it, again and again; what
was opened is counted by inode. Must be seen: every open with its true object; where the names of entry and exit differ,
the record must say so. Needs: two processors to be of use.
"""

import ctypes
import json
import mmap
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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
OPENS = 3000
first, second = make(b"a"), make(b"b")
inodes = {os.stat(first).st_ino: first, os.stat(second).st_ino: second}
shared = mmap.mmap(-1, 4096)
shared[: len(first) + 1] = first + b"\0"
at = len(first) - 1
child = os.fork()
if not child:
    while True:
        shared[at] = 98
        shared[at] = 97
where = ctypes.addressof(ctypes.c_char.from_buffer(shared))
opened = {first: 0, second: 0}
done, deadline = 0, time.monotonic() + 20
while done < OPENS or (not all(opened.values()) and time.monotonic() < deadline):
    done += 1
    if done % OPENS == 0:
        time.sleep(0.01)  # on a busy machine the other process has not had its turn yet
    fd = call(257, -100, where, os.O_RDONLY, 0)
    opened[inodes[os.fstat(fd).st_ino]] += 1
    os.close(fd)
os.kill(child, 9)
os.waitpid(child, 0)
if not all(opened.values()):
    end("not-performed", "only one of the two files was ever opened")
say("open", "openat", objects=list(opened.items()))
end()
