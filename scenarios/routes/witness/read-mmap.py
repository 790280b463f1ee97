"""read-mmap: A file mapped and touched, without a read.

Does: maps its own file: for reading, and shared for writing. Must be seen: the open, and the mapping.
Needs: nothing.
"""

import json
import mmap
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


os.mkdir(HERE)
path = make(b"secret")
os.truncate(path, 4096)
fd = os.open(path, os.O_RDWR)
say("open", "openat", path=path, object=path, **identity(fd))
if CASE == "write":
    page = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page[0] = 65
    say("change", "mmap", object=path, **identity(fd))
else:
    page = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    page[0]
    say("io", "mmap", object=path, **identity(fd))
end()
