"""change-unlink: Names removed.

Does: unlink, unlinkat or rmdir in its own folder. Must be seen: what went. Needs: nothing.
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


os.mkdir(HERE)
if CASE == "rmdir":
    path = HERE + b"/folder"
    os.mkdir(path)
    say("change", "mkdir", path=path)
    os.rmdir(path)
    say("change", "rmdir", path=path)
elif CASE == "unlinkat":
    make(b"secret")
    os.unlink(b"secret", dir_fd=os.open(HERE, os.O_RDONLY | os.O_DIRECTORY))
    say("change", "unlinkat", path=b"secret")
else:
    path = make(b"secret")
    os.unlink(path)
    say("change", "unlink", path=path)
end()
