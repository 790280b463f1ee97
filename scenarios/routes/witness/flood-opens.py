"""flood-opens: Opens, faster than a slow reader takes them.

Does: two processes open the same file 4 000 times each. Must be seen: 8 000 opens, or a count of those that were lost.
Needs: nothing.
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
path = make(b"secret")
OPENS = 4000


def burn():
    for _ in range(OPENS):
        os.close(os.open(path, os.O_RDONLY))


children = []
for _ in range(2):
    child = os.fork()
    if not child:
        burn()
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
say("open", "openat", objects=[(path, 2 * OPENS)])
end()
