"""exec-argv-empty: No arguments at all, or an empty last one.

Does: both, with a program of the box. Must be seen: the list, exactly (Linux 5.18 and later put one empty argument where
there is none). Needs: nothing.
"""

import ctypes
import json
import os
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


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


os.mkdir(HERE)
program = os.fsencode(os.path.realpath("/bin/true"))
none = (ctypes.c_char_p * 1)(None)
if CASE == "none":
    in_child(lambda: call(59, program, none, none))
    say("exec", "execve", path=program, object=program, argv=[], argv2=[b""])
else:
    in_child(lambda: os.execv(program, [b"true", NONCE.encode(), b""]))
    say("exec", "execve", path=program, object=program, argv=[b"true", NONCE.encode(), b""])
end()
