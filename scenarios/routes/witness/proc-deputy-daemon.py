"""proc-deputy-daemon: The socket of a daemon outside.

Does: tries to connect to the well-known sockets of docker and containerd, none of which is in the box. Must be seen: the
attempts. Needs: nothing.
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


def unix(name):
    """A unix address as Python passes it: paths with their NUL, abstract names without."""
    return struct.pack("<H", socket.AF_UNIX) + name + (b"" if name.startswith(b"\0") else b"\0")


os.mkdir(HERE)
for name in (b"/run/docker.sock", b"/run/containerd/containerd.sock"):
    say("connect", "connect", addr=unix(name), errno=attempt(socket.socket(socket.AF_UNIX).connect, name))
end()
