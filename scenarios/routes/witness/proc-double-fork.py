"""proc-double-fork: A daemon: its parent is gone, init is its parent now.

Does: forks twice; the grandchild opens a file when it belongs to init. Must be seen: who made it, and its open.
Needs: nothing.
"""

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


os.mkdir(HERE)
path, mark = make(b"secret"), HERE + b"/grandchild"
found = os.stat(path)
reader, writer = os.pipe()


def daemonise():
    first = os.getpid()
    if not os.fork():
        while os.getppid() == first:
            time.sleep(0.005)
        touch(mark)
        touch(path)
        os.write(writer, b"%d" % os.getpid())


in_child(daemonise)
child = int(os.read(reader, 16))
say("fork", "clone", child=child, mark=mark)
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
end()
