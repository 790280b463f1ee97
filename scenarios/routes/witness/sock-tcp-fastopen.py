"""sock-tcp-fastopen: Data in the first packet, and no connect.

Does: sendto with MSG_FASTOPEN to a listener of its own. Must be seen: the address. Needs: fast open enabled.
"""

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


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
client = socket.socket()
wrong = attempt(client.sendto, b"nonce", 0x20000000, server.getsockname())
if wrong:
    end("inapplicable", f"fast open: {errno.errorcode[wrong]}")
say("socket", "sendto", addr=inet(*server.getsockname()))
end()
