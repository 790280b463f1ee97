"""ip-fragments: Tiny and overlapping fragments, made to slip past whoever judges whole packets.

Does: a raw socket with headers of its own, two overlapping fragments holding the nonce. Must happen: no such socket.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-fragments"
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


def make_socket(family, kind, protocol=0):
    """A socket, or None; either way it is in the tries."""
    try:
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=error.errno)
        return None
    tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=0)
    return one


one = make_socket(socket.AF_INET, socket.SOCK_RAW, 255)
if one is None:
    end()
for offset in (0, 1):
    head = struct.pack(
        ">BBHHHBBH4s4s",
        0x45,
        0,
        36,
        7,
        0x2000 | offset,
        64,
        17,
        0,
        socket.inet_aton("192.0.2.9"),
        socket.inet_aton("198.51.100.7"),
    )
    wrong = attempt(one.sendto, head + NONCE.encode(), ("198.51.100.7", 0))
    tried("socket", "sendto", addr=inet("198.51.100.7", 0), errno=wrong)
end(errno=wrong)
