"""open-long-path: Paths longer than some tools keep.

Does: opens its own file by a string of 4 000 bytes, at a depth of 40 and of 250 folders. Must be seen: the whole string
and the whole path, or a mark that says otherwise. Needs: nothing.
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
if CASE == "string":
    path = make(b"secret")
    given = HERE + b"/." * ((4000 - len(HERE)) // 2) + b"/secret"
else:
    below = b"/d" * int(CASE.removeprefix("deep-"))
    os.makedirs(HERE + below)
    given = path = make(below[1:] + b"/secret")
fd = os.open(given, os.O_RDONLY)
say("open", "openat", path=given, object=path, **identity(fd))
end()
