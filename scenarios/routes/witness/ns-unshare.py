"""ns-unshare: New namespaces: filters keyed on them lose the process.

Does: a new mount, pid, user or network namespace, then an open. Must be seen: the call, and the open after it.
Needs: namespaces.
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


def touch(mark):
    """Open a name nobody else knows and that is not there: it tells who we are."""
    try:
        os.close(os.open(mark, os.O_RDONLY))
    except OSError:
        pass


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
flag = {"mount": 0x20000, "pid": 0x20000000, "user": 0, "net": 0x40000000}[CASE]
separate(flag)
say("cross", "unshare", flags=0x10000000 | flag)
found = os.stat(path)
in_child(lambda: touch(path))
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
end()
