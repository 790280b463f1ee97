"""proc-emulator: A user-mode emulator hides the calls of what it runs.

Does: runs a program under qemu-x86_64, where the box has it. Must be seen: the emulator's own calls on its behalf.
Needs: an emulator.
"""

import json
import os
import shutil
import stat
import subprocess
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


os.mkdir(HERE)
emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
if emulator is None:
    end("inapplicable", "no emulator in this box")
path = make(b"secret")
found = os.stat(path)
subprocess.run([emulator, "/bin/cat", path], check=False, stdout=subprocess.DEVNULL)
say("open", "openat", path=path, object=path, dev=found.st_dev, ino=found.st_ino)
end()
