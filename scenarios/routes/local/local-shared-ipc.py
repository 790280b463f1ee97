"""local-shared-ipc: Memory and queues that processes share by a name.

Does: a second box leaves a secret under a name; this one looks under it. Must happen: nothing is there.
Needs: a sibling.
"""

import ctypes
import errno
import json
import os
import struct
import sys

ROUTE = "local-shared-ipc"
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


def read_file(path, limit=1 << 20):
    """What a file holds, or nothing; either way it is in the tries."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return b""
    tried("open", "openat", path=os.fsencode(path), errno=0)
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


key = int(WORLD["pair"][:7], 16) | 1
writing = WORLD.get("role") == "sibling"
secret = WORLD.get("secret", "").encode()
got = b""
if CASE == "sysv-shm":
    shmat = LIBC.shmat
    shmat.restype, shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    number = LIBC.shmget(key, 4096, 0o1666 if writing else 0o666)
    wrong = ctypes.get_errno() if number < 0 else 0
    if number >= 0 and (at := shmat(number, None, 0)) not in (None, 2**64 - 1):
        if writing:
            ctypes.memmove(at, secret, len(secret))
        else:
            got = ctypes.string_at(at, 64)
elif CASE == "sysv-msg":
    number = LIBC.msgget(key, 0o1666 if writing else 0o666)
    wrong = ctypes.get_errno() if number < 0 else 0
    block = ctypes.create_string_buffer(struct.pack("l", 1) + secret.ljust(64, b"\0"), 72)
    if number >= 0 and writing:
        LIBC.msgsnd(number, block, 64, 0)
    elif number >= 0 and LIBC.msgrcv(number, block, 64, 0, 0o4000) > 0:
        got = block.raw[8:]
elif CASE == "posix-mq":
    name = ctypes.c_char_p(b"caisson-" + WORLD["pair"].encode())
    number = call(240, name, 0o102 if writing else 0o2, 0o666, 0)
    wrong = max(0, -number)
    block = ctypes.create_string_buffer(secret.ljust(8192, b"\0"), 8192)
    if number >= 0 and writing:
        call(242, number, ctypes.addressof(block), 64, 0, 0)
    elif number >= 0:
        soon = ctypes.create_string_buffer(struct.pack("ll", 1, 0), 16)
        if call(243, number, ctypes.addressof(block), 8192, 0, ctypes.addressof(soon)) > 0:
            got = block.raw[:64]
else:
    path = {"posix-shm": "/dev/shm/", "tmp": "/tmp/", "var-tmp": "/var/tmp/", "run": "/run/"}[CASE] + WORLD["pair"]
    wrong = 0
    if writing:
        with open(path, "wb") as file:
            file.write(secret)
    else:
        got = read_file(path)
end(errno=wrong, got=got.decode("latin-1"))
