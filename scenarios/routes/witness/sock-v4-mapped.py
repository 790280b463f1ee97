"""sock-v4-mapped: IPv4 inside IPv6.

Does: connects an IPv6 socket to ::ffff:127.0.0.1. Must be seen: the address as given. Needs: IPv6.
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


os.mkdir(HERE)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
port = server.getsockname()[1]
wrong = attempt(lambda: socket.socket(socket.AF_INET6).connect(("::ffff:127.0.0.1", port)))
if wrong:
    end("inapplicable", f"IPv6: {errno.errorcode[wrong]}")
mapped = socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")
say("connect", "connect", addr=struct.pack("<H", 10) + struct.pack(">HI", port, 0) + mapped + bytes(4))
end()
