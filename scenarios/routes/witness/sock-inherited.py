"""sock-inherited: Sockets one did not connect.

Does: accepts a connection, or receives a connected socket from a sibling. Must be seen: the accept, or what was received.
Needs: lo.
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


def identity(fd):
    found = os.fstat(fd)
    return {"dev": found.st_dev, "ino": found.st_ino}


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
address = server.getsockname()
if CASE == "accepted":
    if not os.fork():
        client = socket.socket()
        client.connect(address)
        client.recv(1)
        os._exit(0)
    one, peer = server.accept()
    say("socket", "accept4", addr=inet(*peer))
    one.send(b"x")
    os.wait()
else:
    ours, theirs = socket.socketpair()
    if not os.fork():
        client = socket.socket()
        client.connect(address)
        socket.send_fds(theirs, [b"x"], [client.fileno()])
        os._exit(0)
    fd = socket.recv_fds(ours, 1, 1)[1][0]
    os.wait()
    say("connect", "connect", addr=inet(*address))
    say("pass", "recvmsg", **identity(fd))
end()
