"""open-proc-magic: A sibling's magic links under /proc/PID.

Does: opens its own file through root, cwd, fd, exe, a namespace or map_files of a child. Must be seen: what is behind.
Needs: for map_files CAP_CHECKPOINT_RESTORE.
"""

import errno
import json
import os
import stat
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


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


os.mkdir(HERE)
path = make(b"secret")
held = os.open(path, os.O_RDONLY)
child = os.fork()
if not child:
    os.chdir(HERE)
    time.sleep(30)
    os._exit(0)
for _ in range(200):
    if os.readlink(b"/proc/%d/cwd" % child) == HERE:
        break
    time.sleep(0.01)
base = b"/proc/%d/" % child
link, target = {
    "root": (b"root" + path, path),
    "cwd": (b"cwd/secret", path),
    "fd": (b"fd/%d" % held, path),
    "exe": (b"exe", os.fsencode(os.path.realpath("/proc/self/exe"))),
    "ns": (b"ns/uts", None),
    "map_files": (b"map_files/", None),
}[CASE]
if CASE == "map_files":
    names = [name for name in os.listdir(base + b"map_files")]
    link += names[0]
    target = os.readlink(base + link)
    if wrong := attempt(os.open, base + link, os.O_RDONLY):
        os.kill(child, 9)
        end("inapplicable", f"map_files: {errno.errorcode[wrong]}")
fd = os.open(base + link, os.O_RDONLY)
say("open", "openat", path=base + link, object=target, **identity(fd))
os.kill(child, 9)
os.waitpid(child, 0)
end()
