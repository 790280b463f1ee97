"""exec-preload: Code of one's own in another's program.

Does: runs a program with LD_PRELOAD set to its own copy of a library. Must be seen: the open of that library by the
program. Needs: nothing.
"""

import json
import os
import shutil
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


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
library = HERE + b"/mine.so"
shutil.copyfile(os.path.realpath("/lib/x86_64-linux-gnu/libdl.so.2"), os.fsdecode(library))
found = os.stat(library)
say("open", "openat", path=library, object=library, dev=found.st_dev, ino=found.st_ino)
program = os.fsencode(os.path.realpath("/bin/true"))
in_child(lambda: os.execve(program, [program, NONCE], {"LD_PRELOAD": os.fsdecode(library)}))
say("exec", "execve", path=program, object=program, argv=[program, NONCE.encode()])
say("open", "openat", path=library, object=library, dev=found.st_dev, ino=found.st_ino)
end()
