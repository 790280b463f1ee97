"""proc-short-lived: Processes that live for less than any poll.

Does: 40 programs, one after the other. Must be seen: every fork, exec and exit. Needs: nothing.
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


os.mkdir(HERE)
program = os.path.realpath("/bin/true")
for number in range(40):
    own = f"{NONCE}-{number}"
    child = os.posix_spawn(program, ["true", own], {})
    os.waitpid(child, 0)
    say("fork", "clone", child=child, mark=own.encode())
    say("exec", "execve", path=os.fsencode(program), object=os.fsencode(program), argv=[b"true", own.encode()])
    say("exit", "exit", mark=own.encode())
end()
