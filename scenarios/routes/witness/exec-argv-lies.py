"""exec-argv-lies: A process that calls itself something else.

Does: argv0: another first argument; prctl: another thread name; overwrite: rewrites its own arguments in memory.
Must be seen: the program that really ran, the arguments it was really given. Needs: nothing.
"""

import ctypes
import errno
import json
import os
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


os.mkdir(HERE)
python = os.fsencode(os.path.realpath("/usr/bin/python3"))
if CASE == "argv0":
    program = os.fsencode(os.path.realpath("/bin/sleep"))
    argv = [b"kworker/0:0", b"0.3", b"0." + NONCE.translate(str.maketrans("abcdef", "012345")).encode()]
    in_child(lambda: os.execv(program, argv))
    say("exec", "execve", path=program, object=program, argv=argv)
elif CASE == "prctl":
    needs(call(157, 15, b"kworker/0:0", 0, 0, 0), "prctl")
    say("cross", "prctl", path=b"kworker/0:0")
else:
    code = (
        b"import ctypes, os, time; words = open('/proc/self/stat').read().rpartition(')')[2].split(); "
        b"start, size = int(words[45]), int(words[46]) - int(words[45]); "
        b"ctypes.memmove(start, (b'/bin/harmless' + bytes(size))[:size], size); time.sleep(0.3)"
    )
    argv = [b"python3", b"-I", b"-S", b"-c", code, NONCE.encode()]
    in_child(lambda: os.execv(python, argv))
    say("exec", "execve", path=python, object=python, argv=argv, lie=[b"/bin/harmless"])
end()
