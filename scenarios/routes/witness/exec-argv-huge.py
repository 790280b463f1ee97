"""exec-argv-huge: More arguments than anybody keeps.

Does: 1.2 MB of arguments. Must be seen: all of them, or a part and a mark. Needs: nothing.
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
argv = [b"true", NONCE.encode(), *(b"%d" % number * 100_000 for number in range(9)), b"last"]
argv = [word[:100_000] for word in argv]
in_child(lambda: os.execv(program, argv))
say("exec", "execve", path=program, object=program, argv=argv)
end()
