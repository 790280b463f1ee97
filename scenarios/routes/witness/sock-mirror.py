"""sock-mirror: An allowed mirror that serves what is forbidden.

Does: nothing here: it takes a gate and a canary. Must be seen: by the gate. Needs: a gate.
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
end("inapplicable", "needs a gate and a canary: see the red-team routes")
end()
