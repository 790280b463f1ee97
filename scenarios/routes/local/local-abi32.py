"""local-abi32: System calls under other numbers: 32-bit ones through int 0x80, x32 ones by a bit in the number.

Does: calls one that the box may make anyway (getpid) and one it may not (keyctl) in that way. Must happen: no such
calls.
"""

import ctypes
import errno
import json
import mmap
import os
import struct
import sys

ROUTE = "local-abi32"
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


if CASE == "x32":
    result = call(0x40000000 | 39)
    end(answer=max(0, -result), leaks=["x32 calls"] if result > 0 else [])
number = {"getpid": 20, "keyctl": 288, "socketcall": 102}[CASE]
code = bytes.fromhex("53") + b"\xb8" + struct.pack("<I", number) + bytes.fromhex("31db31c931d2cd805bc3")
place = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
place.write(code)
run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(place)))
result = run()
if CASE == "keyctl":
    tried("cross", "keyctl", errno=max(0, -result))
end(answer=max(0, -result), leaks=["32-bit calls"] if result != -38 else [])
