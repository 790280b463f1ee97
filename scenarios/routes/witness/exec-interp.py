"""exec-interp: A script: what is named is not what runs.

Does: executes its own script whose first line names another program. Must be seen: the script and its interpreter.
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
path = HERE + b"/script"
with open(path, "wb") as file:
    file.write(b"#!/bin/true\n")
os.chmod(path, 0o755)
in_child(lambda: os.execv(path, [path, NONCE]))
real = os.fsencode(os.path.realpath("/bin/true"))
given, became = [path, NONCE.encode()], [b"/bin/true", path, NONCE.encode()]
say("exec", "execve", path=path, argv=given, argv2=became, object=real, interp=b"/bin/true")
end()
