"""sock-unix-abstract: Unix sockets, by path or in the abstract.

Does: connects to a server of its own. Must be seen: the address, exact to the byte. Needs: nothing.
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


def unix(name):
    """A unix address as Python passes it: paths with their NUL, abstract names without."""
    return struct.pack("<H", socket.AF_UNIX) + name + (b"" if name.startswith(b"\0") else b"\0")


os.mkdir(HERE)
name = b"\0" + NONCE.encode() + b"\0\xff" if CASE == "abstract" else HERE + b"/socket"
server = socket.socket(socket.AF_UNIX)
server.bind(name)
server.listen()
socket.socket(socket.AF_UNIX).connect(name)
say("connect", "connect", addr=unix(name))
end()
