"""open-opath-reopen: A path descriptor, opened again through /proc/self/fd.

Does: O_PATH on its own file, then an open of the magic link. Must be seen: the file behind the link. Needs: nothing.
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
path = make(b"secret")
first = os.open(path, os.O_PATH)
say("open", "openat", path=path, object=path, **identity(first))
link = b"/proc/self/fd/%d" % first
fd = os.open(link, os.O_RDONLY)
say("open", "openat", path=link, object=path, **identity(fd))
end()
