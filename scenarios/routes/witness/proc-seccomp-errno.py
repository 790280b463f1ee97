"""proc-seccomp-errno: A call that one's own filter answers: it never runs.

Does: a child puts a filter on openat2 and calls it. Must be seen: the refused call; where the witness looks only at
entries, nothing. Needs: nothing.
"""

import ctypes
import errno
import json
import os
import stat
import struct
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


def make(name):
    """A file of our own, made without opening it."""
    os.mknod(HERE + b"/" + name, 0o644 | stat.S_IFREG)
    return HERE + b"/" + name


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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


def needs(result, what):
    """The result, or the end of the route where this box may not do it."""
    if result < 0:
        end("inapplicable", f"{what}: {errno.errorcode.get(-result, -result)}")
    return result


os.mkdir(HERE)
path = make(b"secret")


def filtered():
    code = struct.pack("<HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 437, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(text))
    needs(call(157, 38, 1, 0, 0, 0), "no_new_privs")
    needs(call(317, 1, 0, program), "seccomp")
    result = call(437, -100, path, (ctypes.c_uint64 * 3)(), 24)
    say("open", "openat2", path=path, errno=-result)


in_child(filtered)
end()
