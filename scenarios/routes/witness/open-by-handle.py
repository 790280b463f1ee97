"""open-by-handle: open_by_handle_at on a handle made earlier.

Does: name_to_handle_at in the parent, open_by_handle_at in a child with rights over its own mounts. Must be seen: the
open, by its object: no name is given. Needs: handles, and CAP_DAC_READ_SEARCH (in an own namespace since Linux 6.11).
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


def identity(fd):
    found = os.fstat(fd)
    return {"dev": found.st_dev, "ino": found.st_ino}


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


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


def separate(flags):
    """Namespaces of our own, with every right inside."""
    uid, gid = os.getuid(), os.getgid()
    needs(call(272, 0x10000000 | flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            pass  # a box's root has no rights to pass on; without a map the owner of a file is still its owner


os.mkdir(HERE)
separate(0x20000)
LIBC.mount(b"tmpfs", HERE, b"tmpfs", 0, None)
path = HERE + b"/secret"
needs(-attempt(os.mknod, path, 0o644 | stat.S_IFREG), "a file in a file system of its own")
handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
needs(call(303, -100, path, handle, ctypes.byref(mount), 0), "name_to_handle_at")
fd = needs(call(304, os.open(HERE, os.O_RDONLY | os.O_DIRECTORY), handle, os.O_RDONLY), "open_by_handle_at")
say("open", "open_by_handle_at", object=path, **identity(fd))
end()
