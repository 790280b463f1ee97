"""open-open-tree: open_tree(2): a path descriptor without any open.

Does: plain: takes a path descriptor; move-mount: clones a tree of its own and mounts it elsewhere. Must be seen: the
call and its object. Needs: mount calls; for the second an own mount namespace.
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
path = make(b"secret")
if CASE == "plain":
    fd = needs(call(428, -100, path, 0), "open_tree")
    say("change", "open_tree", path=path, object=path, **identity(fd))
else:
    target = make(b"target")
    separate(0x20000)
    fd = needs(call(428, -100, path, 1), "open_tree")
    say("change", "open_tree", path=path, object=path, **identity(fd))
    needs(call(429, fd, b"", -100, target, 4), "move_mount")
    say("change", "move_mount", path=b"", path2=target)
    fd = os.open(target, os.O_RDONLY)
    say("open", "openat", path=target, object=target, **identity(fd))
end()
