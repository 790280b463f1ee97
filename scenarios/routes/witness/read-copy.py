"""read-copy: Content that moves without read and write.

Does: copies its own file by copy_file_range, sendfile, splice, or a clone of its blocks. Must be seen: the open of the
source and of the target, and the copy between them. Needs: for the clone a file system that can.
"""

import ctypes
import errno
import json
import os
import stat
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
os.truncate(path, 64)
source, target = os.open(path, os.O_RDONLY), os.open(HERE + b"/copy", os.O_WRONLY | os.O_CREAT)
say("open", "openat", path=path, object=path, **identity(source))
if CASE == "copy_file_range":
    os.copy_file_range(source, target, 64)
elif CASE == "sendfile":
    os.sendfile(target, source, 0, 64)
elif CASE == "splice":
    reader, writer = os.pipe()
    os.splice(source, writer, 64)
    os.splice(reader, target, 64)
else:
    needs(call(16, target, 0x40049409, source), "FICLONE")
say("io", "ioctl" if CASE == "reflink" else CASE, object=path, **identity(source))
end()
