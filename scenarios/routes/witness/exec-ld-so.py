"""exec-ld-so: The dynamic loader, with the program as its argument.

Does: runs a program by the loader. Must be seen: the exec of the loader with its arguments, and the open of the
program. Needs: nothing.
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
loader = b"/lib64/ld-linux-x86-64.so.2"
program = os.fsencode(os.path.realpath("/bin/true"))
in_child(lambda: os.execv(loader, [loader, program, NONCE.encode()]))
real = os.fsencode(os.path.realpath(loader))
say("exec", "execve", path=loader, object=real, argv=[loader, program, NONCE.encode()])
say("open", "openat", path=program, object=program)
end()
