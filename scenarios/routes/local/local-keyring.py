"""local-keyring: A kernel keyring, which boxes of one user share.

Does: a second box adds a key that holds a secret; this one searches and reads. Must happen: no key goes in, none comes
out. Needs: a sibling.
"""

import ctypes
import errno
import json
import os
import sys

ROUTE = "local-keyring"
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


name = b"caisson-" + WORLD["pair"].encode()
if WORLD.get("role") == "sibling":
    secret = WORLD["secret"].encode()
    result = call(248, ctypes.c_char_p(b"user"), ctypes.c_char_p(name), ctypes.c_char_p(secret), len(secret), -4)
    end(errno=max(0, -result))
result = call(249, ctypes.c_char_p(b"user"), ctypes.c_char_p(name), 0, 0)
found = call(250, 10, -4, ctypes.c_char_p(b"user"), ctypes.c_char_p(name), 0)
tried("cross", "keyctl", errno=max(0, -found))
got = b""
key = result if result > 0 else found
if key > 0:
    block = ctypes.create_string_buffer(200)
    size = call(250, 11, key, ctypes.addressof(block), 200)
    got = block.raw[: max(0, size)]
end(errno=max(0, -result), got=got.decode("latin-1"))
