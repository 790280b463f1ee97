"""ip-arp-nd-spoof: Somebody else's hardware address: needs a link with neighbours.

Does: looks for links, and tries a frame of its own on each. Must happen: there is lo and nothing else, and no frame.
"""

import json
import os
import socket
import sys

ROUTE = "ip-arp-nd-spoof"
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


def make_socket(family, kind, protocol=0):
    """A socket, or None; either way it is in the tries."""
    try:
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=error.errno)
        return None
    tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=0)
    return one


links = [name for _, name in socket.if_nameindex()]
one = make_socket(17, socket.SOCK_RAW, 0x0806)
if one is not None:
    for name in links:
        attempt(one.sendto, b"\xff" * 6 + bytes(6) + b"\x08\x06" + NONCE.encode(), (name, 0x0806))
end(links=links, leaks=[f"a link {name}" for name in links if name != "lo"])
