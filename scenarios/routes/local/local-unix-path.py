"""local-unix-path: A unix socket in a folder that is shown in the box: its path crosses network namespaces.

Does: connects (stream, datagram) to a socket that listens outside, in a folder bound read-only, and opens a named pipe
there. Must happen: nobody outside hears it. Needs: a shared folder.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "local-unix-path"
NONCE, CASE, WORLD = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
TRIES = []


def tried(event, op, **facts):
    """One try and the kernel's answer; bytes become hex."""
    TRIES.append({"event": event, "op": op, "pid": os.getpid(), **facts})


def end(word="performed", reason="", **saw):
    """The one line: everything tried, and what came back."""
    facts = {"end": word, "reason": reason, "tries": TRIES, "saw": saw}
    print(json.dumps({"route": ROUTE, "case": CASE, **facts}, default=bytes.hex), flush=True)
    if WORLD.get("role") == "sibling":
        sys.stdin.read()
    os._exit(0)


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


def patient(one, seconds=8):
    """Time limits the kernel keeps, so that calls stay plain blocking ones."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        one.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    return one


def listen_for(one, limit=65536):
    """What comes back until the other side closes, errs or is silent."""
    got = b""
    try:
        while len(got) < limit and (chunk := one.recv(65536)):
            got += chunk
    except OSError as error:
        return got, error.errno
    return got, 0


def unix(name, kind=socket.SOCK_STREAM):
    """Connect to a unix name (a path, or abstract with a leading NUL): the errno and what came back."""
    with patient(socket.socket(socket.AF_UNIX, kind)) as one:
        wrong = attempt(one.connect, name)
        packed = struct.pack("<H", socket.AF_UNIX) + name + (b"" if name.startswith(b"\0") else b"\0")
        tried("connect", "connect", addr=packed, errno=wrong)
        if wrong:
            return wrong, b""
        attempt(one.sendall, NONCE.encode() + b"\n")
        return listen_for(one)[::-1]


if CASE == "fifo":
    path = "/shared/pipe"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        tried("open", "openat", path=path.encode(), errno=error.errno)
        end("performed" if os.path.exists(path) else "not-performed", errno=error.errno)
    tried("open", "openat", path=path.encode(), errno=0)
    wrong = attempt(os.write, fd, NONCE.encode())
    end(errno=wrong)
path = f"/shared/{CASE}.sock".encode()
if not os.path.exists(path):
    end("not-performed", "the socket is not in the shared folder")
if CASE == "datagram":
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        wrong = attempt(one.connect, path)
        tried("connect", "connect", addr=struct.pack("<H", 1) + path + b"\0", errno=wrong)
        wrong = wrong or attempt(one.send, NONCE.encode())
        end(errno=wrong)
wrong, got = unix(path)
end(errno=wrong, got=got[:300])
