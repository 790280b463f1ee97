"""proc-seccomp-addfd: A supervisor performs the open and hands the descriptor in.

Does: a child with a filter that asks its parent; the parent opens the file and injects it. Must be seen: the parent's
open, and what the child received. Needs: Linux 5.9.
"""

import ctypes
import errno
import json
import os
import socket
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


def identity(fd):
    found = os.fstat(fd)
    return {"dev": found.st_dev, "ino": found.st_ino}


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
ours, theirs = socket.socketpair()
child = os.fork()
if not child:
    code = struct.pack("<HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 437, 6, 0, 0, 0x7FC00000, 6, 0, 0, 0x7FFF0000)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(text))
    call(157, 38, 1, 0, 0, 0)
    listener = call(317, 1, 8, program)
    if listener < 0:
        theirs.send(b"%d" % -listener)
        os._exit(1)
    socket.send_fds(theirs, [b"ok"], [listener])
    fd = call(437, -100, b"/nowhere", (ctypes.c_uint64 * 3)(), 24)
    os._exit(0 if fd >= 0 and os.fstat(fd).st_ino == os.stat(path).st_ino else 1)
said, fds, _, _ = socket.recv_fds(ours, 16, 1)
if not fds:
    end("inapplicable", f"seccomp listener: {os.strerror(int(said))}")
notice = ctypes.create_string_buffer(80)
needs(call(16, fds[0], 0xC0502100, notice), "seccomp notification")
fd = os.open(path, os.O_RDONLY)
say("open", "openat", path=path, object=path, **identity(fd))
number = struct.unpack_from("<Q", notice)[0]
needs(
    call(16, fds[0], 0x40182103, ctypes.create_string_buffer(struct.pack("<QIIII", number, 2, fd, 0, 0), 24)), "addfd"
)
if os.waitpid(child, 0)[1]:
    end("not-performed", "the child did not get the file")
say("pass", "addfd", object=path, **identity(fd))
end()
