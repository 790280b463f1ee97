"""cgroup-move-out: Into a cgroup that is not below the box's.

Does: is moved into a cgroup beside its own, then opens its file. Must be seen: the move; a witness that follows cgroups
loses the process from there on, and must say so. Needs: as above.
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


def ask(what):
    """Ask the outside for something, and wait until it is done."""
    print(json.dumps({"ask": what}), flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "done":
        end("inapplicable", answer or "nobody answers")


os.mkdir(HERE)
path = make(b"secret")
ask("cgroup-out")
say("cross", "cgroup-out")
fd = os.open(path, os.O_RDONLY)
say("open", "openat", path=path, object=path, **identity(fd))
end()
