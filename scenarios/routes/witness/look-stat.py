"""look-stat: Existence and size as an oracle, without any open.

Does: stat, access, statx or readlink on its own file, and on a name that is not there. Must be seen: the looks.
Needs: nothing.
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


os.mkdir(HERE)
path = make(b"secret")
gone = HERE + b"/absent"
if CASE == "stat":
    os.stat(path)
    say("look", "newfstatat", path=path)
    say("look", "newfstatat", path=gone, errno=attempt(os.stat, gone))
elif CASE == "access":
    os.access(path, os.R_OK)
    say("look", "access", path=path)
elif CASE == "statx":
    needs(call(332, -100, path, 0, 0x7FF, ctypes.create_string_buffer(256)), "statx")
    say("look", "statx", path=path)
else:
    link = HERE + b"/link"
    os.symlink(path, link)
    os.readlink(link)
    say("look", "readlink", path=link)
end()
