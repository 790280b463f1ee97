"""sock-shm-deputy: Shared memory with a sibling that has the network.

Does: asks a child over shared memory to connect for it. Must be seen: the child's connect; of the memory only its making.
Needs: lo.
"""

import json
import mmap
import os
import socket
import struct
import sys
import time

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
server.listen()
fd = os.memfd_create(NONCE)
os.truncate(fd, 4096)
say("change", "memfd_create", path=NONCE.encode())
page = mmap.mmap(fd, 4096)
if not os.fork():
    while page[:1] != b"g":
        time.sleep(0.01)
    socket.socket().connect(("127.0.0.1", struct.unpack_from("<H", page, 1)[0]))
    os._exit(0)
address = server.getsockname()
struct.pack_into("<H", page, 1, address[1])
page[:1] = b"g"
os.wait()
say("connect", "connect", addr=inet(*address))
end()
