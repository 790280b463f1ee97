"""sock-mark-netns: A socket that leaves its namespace behind.

Does: mark: asks for SO_MARK (refused); netns: makes a socket, moves to a new network namespace, connects with the old
one. Must be seen: the request, or the move and the connect. Needs: namespaces.
"""

import ctypes
import errno
import json
import os
import socket
import struct
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


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
client = socket.socket()
if CASE == "mark":
    say("socket", "setsockopt", errno=attempt(client.setsockopt, socket.SOL_SOCKET, 36, 7))
else:
    separate(0x40000000)
    say("cross", "unshare", flags=0x50000000)
    client.connect(server.getsockname())
    say("connect", "connect", addr=inet(*server.getsockname()))
end()
