"""sock-loopback: A talk over loopback: both ends.

Does: bind, listen, connect, accept. Must be seen: each, with its address. Needs: lo.
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


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
server = socket.socket()
server.bind(("127.0.0.1", 0))
address = server.getsockname()
say("socket", "bind", addr=inet("127.0.0.1", 0))
server.listen()
client = socket.socket()
client.connect(address)
say("connect", "connect", addr=inet(*address))
_, peer = server.accept()
say("socket", "accept4", addr=inet(*peer))
end()
