"""sock-connect-nonblock: A connect whose outcome comes later.

Does: a non-blocking connect to a listener of its own, or to a closed port. Must be seen: EINPROGRESS, and how it ended.
Needs: lo.
"""

import json
import os
import select
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
host, port = server.getsockname()
if CASE == "open":
    server.listen()
client = socket.socket()
client.setblocking(False)
code = client.connect_ex((host, port))
select.select([], [client], [], 2)
final = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
say("connect", "connect", addr=inet(host, port), errno=code, final=final)
end()
