"""flood-forks: Forks and exits in a loop.

Does: 150 children that open a name and end. Must be seen: every fork and exit, or a count of those that were lost.
Needs: nothing.
"""

import json
import os
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


def touch(mark):
    """Open a name nobody else knows and that is not there: it tells who we are."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except OSError:
        pass


def in_child(work):
    """Do the work in a child and wait for it; its number."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return child


os.mkdir(HERE)
for number in range(150):
    mark = HERE + b"/child-%d" % number
    child = in_child(lambda: touch(mark))
    say("fork", "clone", child=child, mark=mark)
    say("exit", "exit", mark=mark)
end()
