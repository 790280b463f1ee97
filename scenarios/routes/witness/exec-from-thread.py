"""exec-from-thread: An exec by a thread that is not the first.

Does: a child's second thread executes a program. Must be seen: the exec, once, under the process's number.
Needs: nothing.
"""

import json
import os
import sys
import threading
import time

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


def from_thread():
    threading.Thread(target=os.execv, args=(program, [program, NONCE])).start()
    time.sleep(5)


in_child(from_thread)
say("exec", "execve", path=program, object=program, argv=[program, NONCE.encode()])
end()
