"""look-getdents: A folder, listed.

Does: lists its own folder. Must be seen: the open of the folder and the listing. Needs: nothing.
"""

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


os.mkdir(HERE)
make(b"secret")
fd = os.open(HERE, os.O_RDONLY | os.O_DIRECTORY)
say("open", "openat", path=HERE, object=HERE, **identity(fd))
os.listdir(fd)
say("look", "getdents64", object=HERE, **identity(fd))
end()
