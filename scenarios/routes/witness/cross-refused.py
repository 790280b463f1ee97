"""cross-refused: Calls on the kernel itself, all refused.

Does: bpf, finit_module and keyctl, and a ring of io_uring, in a box that allows none. Must be seen: the attempts and
their errno; a filter answers them before they run. Needs: nothing.
"""

import ctypes
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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
number = {"bpf": 321, "finit_module": 313, "keyctl": 250, "io_uring_setup": 425}[CASE]
result = call(number, 0, 0, 0, 0, 0)
if result >= 0:
    end("not-performed", "it was allowed")
say("cross", CASE, errno=-result)
end()
