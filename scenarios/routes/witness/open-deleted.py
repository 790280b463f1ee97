"""open-deleted: Files without a name.

Does: opens, through /proc/self/fd, a file that was unlinked, one of O_TMPFILE, and a memfd. Must be seen: the open and
its identity. Needs: nothing.
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
if CASE == "unlinked":
    path = make(b"secret")
    first = os.open(path, os.O_RDONLY)
    say("open", "openat", path=path, object=path, **identity(first))
    os.unlink(path)
elif CASE == "tmpfile":
    first = os.open(HERE, os.O_TMPFILE | os.O_RDWR)
    say("open", "openat", path=HERE, **identity(first))
else:
    first = os.memfd_create(NONCE + "/../x" if CASE == "memfd-slash" else NONCE)
link = b"/proc/self/fd/%d" % first
fd = os.open(link, os.O_RDONLY)
say("open", "openat", path=link, object=b"memfd:" + NONCE.encode() if CASE == "memfd" else None, **identity(fd))
end()
