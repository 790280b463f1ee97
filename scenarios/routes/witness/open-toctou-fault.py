"""open-toctou-fault: The same, made certain by a page that the box itself supplies.

Does: puts the path on a page under userfaultfd and supplies it when the kernel faults. Must be seen: the object.
Needs: userfaultfd for kernel faults (CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd).
"""

import ctypes
import errno
import json
import mmap
import os
import stat
import sys
import threading

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
watcher = needs(call(323, 0), "userfaultfd for kernel faults")
LIBC.mmap.restype = ctypes.c_void_p
page = LIBC.mmap(None, 4096, 3, 0x22, -1, 0)
fcntl_api = (ctypes.c_uint64 * 3)(0xAA, 0, 0)
needs(call(16, watcher, 0xC018AA3F, fcntl_api), "userfaultfd api")
needs(call(16, watcher, 0xC020AA00, (ctypes.c_uint64 * 4)(page, 4096, 1, 0)), "userfaultfd register")
child = os.fork()
results = []
source = ctypes.create_string_buffer(path + bytes(4096 - len(path)), 4096)


def supply():
    os.read(watcher, 32)
    call(16, watcher, 0xC028AA03, (ctypes.c_uint64 * 5)(page, ctypes.addressof(source), 4096, 0, 0))


if not child:
    os._exit(0)
os.waitpid(child, 0)
thread = threading.Thread(target=supply)
thread.start()
fd = needs(call(257, -100, page, os.O_RDONLY, 0), "openat")
thread.join()
say("open", "openat", path=path, object=path, **identity(fd))
end()
