"""ip-packet-socket: Frames put on a link by hand.

Does: a packet socket, raw or datagram; the nonce on lo where it opens. Must happen: no such socket.
"""

import json
import os
import socket
import sys

ROUTE = "ip-packet-socket"
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


one = make_socket(17, socket.SOCK_RAW if CASE == "raw" else socket.SOCK_DGRAM, 0)
if one is None:
    end()
wrong = attempt(one.sendto, NONCE.encode() * 4, ("lo", 0x0800))
end(errno=wrong, opened=True)
