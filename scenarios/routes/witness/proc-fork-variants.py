"""proc-fork-variants: All the ways to a new process.

Does: fork without exec, posix_spawn, vfork, clone3. Must be seen: fork and exit of each. Needs: for clone3 a box that
allows namespaces (its flags lie where no filter looks).
"""

import ctypes
import errno
import json
import os
import signal
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
mark = HERE + b"/child"
if CASE == "fork":
    child = in_child(lambda: touch(mark))
elif CASE == "posix_spawn":
    child = os.posix_spawn("/bin/cat", ["cat", mark], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, 2)])
    os.waitpid(child, 0)
elif CASE == "vfork":
    running = subprocess.Popen(["/bin/cat", mark], stderr=subprocess.DEVNULL)
    child = running.pid
    running.wait()
else:
    child = needs(call(435, (ctypes.c_uint64 * 8)(0, 0, 0, 0, signal.SIGCHLD), 64), "clone3")
    if not child:
        touch(mark)
        os._exit(0)
    os.waitpid(child, 0)
say("fork", CASE, child=child, mark=mark)
say("exit", "exit", mark=mark, status=1 if CASE in ("posix_spawn", "vfork") else 0)
end()
