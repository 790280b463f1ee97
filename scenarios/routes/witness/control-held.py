"""control-held: The control of every witness: things that last long enough for each of them.

Does: starts a child that holds a file open for a while. Must be seen: the child, its command line, the open.
Needs: nothing.
"""

import json
import os
import stat
import subprocess
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


def ask(what):
    """Ask the outside for something, and wait until it is done."""
    print(json.dumps({"ask": what}), flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "done":
        end("inapplicable", answer or "nobody answers")


os.mkdir(HERE)
path = make(b"held")
code = "import os, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY); print(flush=True); time.sleep(5)"
argv = ["/usr/bin/python3", "-I", "-S", "-c", code, os.fsdecode(path)]
child = subprocess.Popen(argv, stdout=subprocess.PIPE)
child.stdout.read(1)
ask("pause")
fd = os.stat(path)
say("fork", "vfork", child=child.pid, mark=path)
say("exec", "execve", path=b"/usr/bin/python3", argv=[os.fsencode(word) for word in argv])
say("open", "openat", path=path, object=path, dev=fd.st_dev, ino=fd.st_ino)
child.kill()
child.wait()
end()
