"""ip-so-mark: A socket mark, as firewalls use them to let traffic of their own pass.

Does: sets the mark 1, connects, sends the nonce. Must happen: the mark is refused, and no mark would help.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-so-mark"
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


def inet(host, port, scope=0):
    """An address as the kernel is given it."""
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host)
        return struct.pack("<H", socket.AF_INET6) + struct.pack(">HI", port, 0) + packed + struct.pack("<I", scope)
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


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


with patient(socket.socket()) as one:
    wrong = attempt(one.setsockopt, socket.SOL_SOCKET, 36, 1)
    tried("cross", "setsockopt", errno=wrong)
    refused = attempt(one.connect, ("198.51.100.7", 443))
    tried("connect", "connect", addr=inet("198.51.100.7", 443), errno=refused)
    got = b""
    if not refused:
        attempt(one.sendall, NONCE.encode())
        got, _ = listen_for(one)
end(mark=wrong, errno=refused, got=got[:300])
