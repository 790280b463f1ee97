"""ip-other-transports: Transports a list of TCP and UDP forgets: SCTP, DCCP, UDP-Lite, MPTCP.

Does: a socket of each, over IPv4 or IPv6, and the nonce through it where it opens. Must happen: no such socket; no canary
gets it.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-other-transports"
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


def make_socket(family, kind, protocol=0):
    """A socket, or None; either way it is in the tries."""
    try:
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=error.errno)
        return None
    tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=0)
    return one


name, _, version = CASE.partition("-")
kind, number = {"sctp": (1, 132), "dccp": (6, 33), "udplite": (2, 136), "mptcp": (1, 262)}[name]
host, family = ("2001:db8::7", socket.AF_INET6) if version else ("198.51.100.7", socket.AF_INET)
one = make_socket(family, kind, number)
if one is None:
    end()
patient(one, 1)
wrong = attempt(one.connect, (host, 443))
tried("connect", "connect", addr=inet(host, 443), errno=wrong)
if not wrong:
    wrong = attempt(one.send, NONCE.encode())
got, _ = (b"", 0) if wrong else listen_for(one)
end(errno=wrong, got=got[:300], opened=True)
