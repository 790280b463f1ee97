"""open-rename-dance: Rename away, read, rename back.

Does: that, with a file of its own. Must be seen: both renames and the open between them. Needs: nothing.
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
path, away = make(b"secret"), HERE + b"/harmless"
os.rename(path, away)
say("change", "rename", path=path, path2=away)
fd = os.open(away, os.O_RDONLY)
say("open", "openat", path=away, object=away, **identity(fd))
os.rename(away, path)
say("change", "rename", path=away, path2=path)
end()
