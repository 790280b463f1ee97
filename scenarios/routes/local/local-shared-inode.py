"""local-shared-inode: The host's own files, shown in every box: one inode for all, so locks and watches on it are shared too.

Does: a second box locks a file below /usr and opens it again and again; this one tries the lock, or watches the file.
Must happen: neither is noticed. Needs: a sibling.
"""

import ctypes
import errno
import fcntl
import json
import os
import sys
import time

ROUTE = "local-shared-inode"
NONCE, CASE, WORLD = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
TRIES = []


def tried(event, op, **facts):
    """One try and the kernel's answer; bytes become hex."""
    TRIES.append({"event": event, "op": op, "pid": os.getpid(), **facts})


def end(word="performed", reason="", **saw):
    """The one line: everything tried, and what came back."""
    facts = {"end": word, "reason": reason, "tries": TRIES, "saw": saw}
    print(json.dumps({"route": ROUTE, "case": CASE, **facts}, default=bytes.hex), flush=True)
    if WORLD.get("role") == "sibling":
        sys.stdin.read()
    os._exit(0)


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def open_only(path, flags):
    """Open, and close at once: the errno. Nothing is ever written."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return error.errno
    tried("open", "openat", path=os.fsencode(path), errno=0)
    return 0


path = next(
    one for one in ("/usr/bin/zdump", "/usr/bin/iconv", "/usr/bin/getconf", "/usr/bin/env") if os.path.exists(one)
)
if WORLD.get("role") == "sibling":
    fd = os.open(path, os.O_RDONLY)
    if CASE == "lock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif not os.fork():
        os.close(1)
        while os.getppid() != 1:
            os.close(os.open(path, os.O_RDONLY))
            time.sleep(0.02)
        os._exit(0)
    end()
if CASE == "lock":
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    tried("open", "openat", path=path.encode(), errno=0)
    wrong = attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    end(lock=wrong, leaks=["another box's lock"] if wrong == errno.EWOULDBLOCK else [])
fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
watch = LIBC.inotify_add_watch(fd, path.encode(), 0x20 | 0x1)
open_only("/usr/bin", os.O_RDONLY)
if fd < 0 or watch < 0:
    end("not-performed", "no watch")
time.sleep(1.0)
try:
    events = os.read(fd, 4096)
except BlockingIOError:
    events = b""
end(events=len(events), leaks=["another box's opens"] if events else [])
