"""open-hardlink: A read through a second hard link.

Does: links its own file under another name and opens that. Must be seen: device and inode of the file, for the name
tells nothing. Needs: nothing.
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
path, alias = make(b"secret"), HERE + b"/harmless"
os.link(path, alias)
fd = os.open(alias, os.O_RDONLY)
say("open", "openat", path=alias, object=path, **identity(fd))
end()
