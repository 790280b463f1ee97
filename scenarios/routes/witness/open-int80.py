"""open-int80: A 32-bit call from a 64-bit program.

Does: copies the path below 4 GiB and raises interrupt 0x80 with call number 5. Must be seen: the open, as a 32-bit one.
Needs: IA32_EMULATION, a box that may make 32-bit calls (compat32).
"""

import ctypes
import errno
import json
import mmap
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


os.mkdir(HERE)
path = make(b"secret")
LIBC.mmap.restype = ctypes.c_void_p
low = LIBC.mmap(None, 8192, 7, 0x62, -1, 0)  # read, write, execute; private, anonymous, below 4 GiB
if low is None or low > 0xFFFFFFFF:
    end("inapplicable", "no writable and executable memory below 4 GiB")
ctypes.memmove(low + 4096, path + b"\0", len(path) + 1)
code = b"\x53\xb8\x05\0\0\0\xbb" + struct.pack("<I", low + 4096) + b"\x31\xc9\x31\xd2\xcd\x80\x5b\xc3"
ctypes.memmove(low, code, len(code))
child = os.fork()  # without 32-bit support the interrupt is a fault
if not child:
    fd = ctypes.CFUNCTYPE(ctypes.c_int)(low)()
    if fd >= 0:
        say("open", "open", path=path, object=path, **identity(fd))
    os._exit(-fd if fd < 0 else 0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if status:
    end("inapplicable", f"no 32-bit calls here: {errno.errorcode.get(status, status)}")
end()
