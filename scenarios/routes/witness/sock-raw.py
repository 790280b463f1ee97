"""sock-raw: Sockets below the transports.

Does: a raw (ICMP) or a packet socket: without the right, or in its own network namespace. Must be seen: the making of the
socket, with its errno. Needs: for the second namespaces and families.
"""

import ctypes
import errno
import json
import os
import socket
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
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
if CASE.endswith("own"):
    separate(0x40000000)
wanted = (socket.AF_PACKET, socket.SOCK_RAW, 0) if "packet" in CASE else (socket.AF_INET, socket.SOCK_RAW, 1)
wrong = attempt(socket.socket, *wanted)
if wrong and CASE.endswith("own"):
    end("inapplicable", f"socket: {errno.errorcode[wrong]}")
say("socket", "socket", family=int(wanted[0]), type=3, protocol=wanted[2], errno=wrong)
end()
