"""flood-signal: Signals at the witness.

Does: sends SIGSTOP to the numbers that a witness could have, as far as they are not of the box. Must be seen: the
witness alive at the end. Needs: nothing.
"""

import json
import os
import signal
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


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


os.mkdir(HERE)
path = make(b"secret")
inside = {int(name) for name in os.listdir("/proc") if name.isdigit()}
for number in (*range(2, 64), *range(1000, 1100)):
    if number not in inside and not attempt(os.kill, number, signal.SIGSTOP):
        end("not-performed", f"{number} could be reached")
fd = os.open(path, os.O_RDONLY)
say("open", "openat", path=path, object=path, **identity(fd))
end()
