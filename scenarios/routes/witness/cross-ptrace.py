"""cross-ptrace: A sibling, traced.

Does: attaches to a child by ptrace and reads its memory by process_vm_readv. Must be seen: both calls.
Needs: ptrace access to the sibling.
"""

import ctypes
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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
child = os.fork()
if not child:
    time.sleep(30)
    os._exit(0)
if CASE == "ptrace":
    result = call(101, 16, child, 0, 0)
    say("cross", "ptrace", errno=max(0, -result))
else:
    text = ctypes.create_string_buffer(b"x" * 16)
    room = ctypes.create_string_buffer(16)
    mine = (ctypes.c_uint64 * 2)(ctypes.addressof(room), 16)
    theirs = (ctypes.c_uint64 * 2)(ctypes.addressof(text), 16)
    result = call(310, child, mine, 1, theirs, 1, 0)
    say("cross", "process_vm_readv", errno=max(0, -result))
os.kill(child, 9)
os.waitpid(child, 0)
end()
