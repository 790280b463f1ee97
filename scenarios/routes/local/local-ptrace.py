"""local-ptrace: Another process's memory and descriptors, by its number.

Does: ptrace, process_vm_readv, pidfd_open and pidfd_getfd on a stand-in outside, by the number it has there; and on the
box's own init. Must happen: there is no such process, and the init gives nothing away.
"""

import ctypes
import errno
import json
import os
import sys

ROUTE = "local-ptrace"
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


got = b""
pids = [1] if CASE.endswith("-init") else [WORLD["stand_in"], WORLD["runner"]]
name = CASE.removesuffix("-init")
wrongs = []
for pid in pids:
    if name == "ptrace":
        result = call(101, 0x4206, pid, 0, 0)
        tried("cross", "ptrace", errno=max(0, -result))
    elif name == "process_vm_readv":
        block = ctypes.create_string_buffer(256)
        local = (ctypes.c_uint64 * 2)(ctypes.addressof(block), 256)
        remote = (ctypes.c_uint64 * 2)(WORLD["stand_in_address"], 256)
        result = call(310, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
        tried("cross", "process_vm_readv", errno=max(0, -result))
        got += block.raw
    else:
        result = fd = call(434, pid, 0)
        if fd >= 0:
            for number in range(3, 20):
                result = call(438, fd, number, 0)
                tried("pass", "pidfd_getfd", errno=max(0, -result))
                if result >= 0:
                    break
            else:
                wrongs.append([pid, 1])
                continue
    wrongs.append([pid, max(0, -result)])
taken = [f"{name} of {pid}" for pid, wrong in wrongs if wrong == 0]
end(answer=wrongs[0][1], answers=wrongs, got=got.decode("latin-1").strip("\0"), leaks=taken)
