"""ip-new-netns: Namespaces of its own, where it would be root again.

Does: unshare of a user and a network namespace, or clone3 with the same. Must happen: refused; the kernel's surface
behind it stays closed.
"""

import ctypes
import errno
import json
import os
import sys

ROUTE = "ip-new-netns"
NONCE, CASE, WORLD = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
TRIES = []


def tried(event, op, **facts):
    """One try and the kernel's answer; bytes become hex."""
    TRIES.append({"event": event, "op": op, "pid": os.getpid(), **facts})


def end(word="performed", reason="", **saw):
    """The one line: everything tried, and what came back."""
    facts = {"end": word, "reason": reason, "tries": TRIES, "saw": saw}
    print(json.dumps({"route": ROUTE, "case": CASE, **facts}, default=bytes.hex), flush=True)
    if WORLD.get("role") == "sibling":
        sys.stdin.read()
    os._exit(0)


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


if CASE == "clone3":
    block = (ctypes.c_uint64 * 11)()
    block[0], block[4] = 0x50000000, 17
    result = call(435, ctypes.addressof(block), 88)
    if result == 0:
        os._exit(0)
    tried("cross", "clone3", errno=max(0, -result))
    end(errno=max(0, -result), leaks=["a process in namespaces of its own"] if result > 0 else [])
flags = {"unshare": 0x50000000, "user": 0x10000000}[CASE]
result = call(272, flags)
tried("cross", "unshare", errno=max(0, -result))
end(errno=max(0, -result), leaks=["namespaces of its own"] if result == 0 else [])
