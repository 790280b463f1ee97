"""flood-memory: Much to hold for each event.

Does: 30 programs with 100 KB of arguments each. Must be seen: every exec. Needs: nothing.
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
program = os.fsencode(os.path.realpath("/bin/true"))
for number in range(30):
    argv = [b"true", NONCE.encode(), b"%d" % number, b"x" * 100_000]
    in_child(lambda: os.execv(program, argv))
    say("exec", "execve", path=program, object=program, argv=argv)
end()
