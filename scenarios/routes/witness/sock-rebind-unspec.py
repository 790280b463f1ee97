"""sock-rebind-unspec: One socket, two peers.

Does: connects a datagram socket, dissolves that by AF_UNSPEC, connects it elsewhere. Must be seen: all three.
Needs: lo.
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


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
receivers = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for one in receivers:
    one.bind(("127.0.0.1", 0))
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(receivers[0].getsockname())
say("connect", "connect", addr=inet(*receivers[0].getsockname()))
needs(call(42, client.fileno(), bytes(16), 16), "connect to AF_UNSPEC")
say("connect", "connect", addr=bytes(16))
client.connect(receivers[1].getsockname())
say("connect", "connect", addr=inet(*receivers[1].getsockname()))
end()
