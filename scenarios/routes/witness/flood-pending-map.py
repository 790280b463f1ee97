"""flood-pending-map: Many calls that do not return: what a witness notes at entry piles up.

Does: 60 processes wait in an open of a pipe, and are let go. Must be seen: every open. Needs: nothing.
"""

import json
import os
import sys
import time

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


os.mkdir(HERE)
path = HERE + b"/pipe"
os.mkfifo(path)
children = []
for _ in range(60):
    child = os.fork()
    if not child:
        os.open(path, os.O_RDONLY)
        os._exit(0)
    children.append(child)
time.sleep(0.3)
os.mkdir(HERE + b"/in")
os.chdir(HERE)
writer = os.open(b"pipe", os.O_WRONLY)
for child in children:
    os.waitpid(child, 0)
found = os.stat(path)
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino, count=60)
end()
