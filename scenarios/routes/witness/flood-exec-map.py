"""flood-exec-map: Many programs that do not end.

Does: 40 long-lived children, all executed, then killed. Must be seen: every exec, and every exit by signal.
Needs: nothing.
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
program = os.fsencode(os.path.realpath("/bin/sleep"))
children = []
for number in range(40):
    # Letters would be no time to sleep for.
    own = b"1%03d.%d" % (number, int(NONCE, 16))
    children.append((os.posix_spawn(program, [b"sleep", own], {}), own))
time.sleep(0.2)
for child, own in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
    say("exec", "execve", path=program, object=program, argv=[b"sleep", own])
    say("exit", "exit", mark=own, status=137)
end()
