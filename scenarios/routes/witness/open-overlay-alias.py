"""open-overlay-alias: A read through an overlay mount of the folder.

Does: mounts an own overlay over own folders and reads there. Must be seen: the mount, and the open by its name and
identity in the overlay. Needs: mount, namespaces.
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
for name in (b"low", b"up", b"work", b"merged"):
    os.mkdir(HERE + b"/" + name)
path, merged = make(b"low/secret"), HERE + b"/merged/secret"
separate(0x20000)
options = b"lowerdir=%s/low,upperdir=%s/up,workdir=%s/work,userxattr" % (HERE, HERE, HERE)
if LIBC.mount(b"overlay", HERE + b"/merged", b"overlay", 0, options):
    end("inapplicable", f"mount: {errno.errorcode[ctypes.get_errno()]}")
say("change", "mount", path=b"overlay", path2=HERE + b"/merged")
fd = os.open(merged, os.O_RDONLY)
say("open", "openat", path=merged, object=merged, **identity(fd))
end()
