"""open-odd-bytes: Names that break lines, terminals and decoders.

Does: opens files called with a newline, an escape sequence, bytes that are no UTF-8, quotes and brackets. Must be seen:
the names, exact to the byte. Needs: nothing.
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
for name in (b"new\nline", b"\x1b[31mred\x1b[0m", b"\xff\xfe\x80", b'quote")= 3<x>', b" \t\\040 "):
    path = make(name)
    fd = os.open(path, os.O_RDONLY)
    say("open", "openat", path=path, object=path, **identity(fd))
end()
