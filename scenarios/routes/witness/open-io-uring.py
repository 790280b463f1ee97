"""open-io-uring: An open submitted to a ring: no system call of its own.

Does: OPENAT (or OPENAT2) of its own file through io_uring. Must be seen: the open, with path and result.
Needs: io_uring.
"""

import ctypes
import errno
import json
import mmap
import os
import stat
import struct
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


class Ring:
    """The smallest io_uring: one entry at a time."""

    def __init__(self, flags=0):
        params = (ctypes.c_uint32 * 30)()
        params[2], params[4] = flags, 50
        self.fd = needs(call(425, 4, params), "io_uring_setup")
        self.flags, entries, completions = flags, params[0], params[1]
        self.sq, self.cq = list(params[10:20]), list(params[20:30])
        size = max(self.sq[6] + entries * 4, self.cq[5] + completions * 16)
        self.ring = mmap.mmap(self.fd, size)
        self.entries = mmap.mmap(self.fd, entries * 64, offset=0x10000000)

    def word(self, at):
        return struct.unpack_from("<I", self.ring, at)[0]

    def submit(self, opcode, fd, address, length, offset=0, op_flags=0, index=0, entry_flags=0):
        """Submit one entry, wait for its result (minus errno when it failed)."""
        tail = self.word(self.sq[1])
        slot = tail & self.word(self.sq[2])
        struct.pack_into(
            "<BBHiQQIIQHHIQQ",
            self.entries,
            slot * 64,
            opcode,
            entry_flags,
            0,
            fd,
            offset,
            address,
            length,
            op_flags,
            7,
            0,
            0,
            index,
            0,
            0,
        )
        struct.pack_into("<I", self.ring, self.sq[6] + 4 * slot, slot)
        struct.pack_into("<I", self.ring, self.sq[1], tail + 1)
        if self.flags & 2:
            for _ in range(2000):
                if self.word(self.cq[0]) != self.word(self.cq[1]):
                    break
                if self.word(self.sq[4]) & 1:
                    call(426, self.fd, 0, 0, 2, 0, 0)
                time.sleep(0.001)
            else:
                end("not-performed", "the kernel thread did not take the entry")
        else:
            needs(call(426, self.fd, 1, 1, 1, 0, 0), "io_uring_enter")
        head = self.word(self.cq[0])
        result = struct.unpack_from("<Qi", self.ring, self.cq[5] + 16 * (head & self.word(self.cq[2])))[1]
        struct.pack_into("<I", self.ring, self.cq[0], head + 1)
        return result


os.mkdir(HERE)
path = make(b"secret")
ring = Ring()
where = ctypes.create_string_buffer(path)
if CASE == "openat2":
    how = (ctypes.c_uint64 * 3)()
    fd = ring.submit(28, -100, ctypes.addressof(where), 24, offset=ctypes.addressof(how))
elif CASE == "failed":
    gone = HERE + b"/absent"
    where = ctypes.create_string_buffer(gone)
    fd = ring.submit(18, -100, ctypes.addressof(where), 0)
    say("open", "openat", path=gone, errno=-fd)
    end()
else:
    fd = ring.submit(18, -100, ctypes.addressof(where), 0)
needs(fd, "io_uring open")
say("open", CASE or "openat", path=path, object=path, **identity(fd))
end()
