"""change-link: A new link.

Does: a hard link, or a symbolic one, to its own file. Must be seen: both names. Needs: nothing.
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
path, other = make(b"secret"), HERE + b"/other"
if CASE == "symlink":
    os.symlink(path, other)
else:
    os.link(path, other)
say("change", CASE, path=path, path2=other)
end()
