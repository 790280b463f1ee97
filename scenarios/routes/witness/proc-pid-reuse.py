"""proc-pid-reuse: The same process number twice.

Does: in an own pid namespace, makes two children with the same chosen number. Must be seen: two processes.
Needs: namespaces.
"""

import ctypes
import errno
import json
import os
import signal
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


def separate(flags):
    """Namespaces of our own, with every right inside."""
    uid, gid = os.getuid(), os.getgid()
    needs(call(272, 0x10000000 | flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            pass  # a box's root has no rights to pass on; without a map the owner of a file is still its owner


os.mkdir(HERE)
separate(0x20000000)


def inside():
    for number in (1, 2):
        mark = HERE + b"/child-%d" % number
        chosen = (ctypes.c_int * 1)(77)
        arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(chosen), 1, 0)
        child = needs(call(435, arguments, 88), "clone3 with a chosen number")
        if not child:
            touch(mark)
            os._exit(0)
        os.waitpid(child, 0)
        say("fork", "clone3", child=child, mark=mark)
        say("exit", "exit", mark=mark)


in_child(inside)
end()
