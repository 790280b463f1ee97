"""ip-icmpv6-nd: Neighbour and router messages.

Does: a raw or a datagram ICMPv6 socket, a neighbour solicitation with the nonce. Must happen: no such socket, or
nobody hears it.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-icmpv6-nd"
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


one = make_socket(socket.AF_INET6, socket.SOCK_DGRAM if CASE == "datagram" else socket.SOCK_RAW, 58)
if one is None:
    end()
packet = struct.pack(">BBHI", 135, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8::7") + NONCE.encode()
wrong = attempt(one.sendto, packet, ("2001:db8::7", 0))
tried("socket", "sendto", addr=inet("2001:db8::7", 0), errno=wrong)
end(errno=wrong)
