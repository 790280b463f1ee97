"""local-odd-families: Socket families hardly anybody uses: a wide kernel surface, and some reach beyond the box.

Does: makes a socket of the case's family. Must happen: no such socket.
"""

import json
import os
import socket
import sys

ROUTE = "local-odd-families"
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


def make_socket(family, kind, protocol=0):
    """A socket, or None; either way it is in the tries."""
    try:
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=error.errno)
        return None
    tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=0)
    return one


family, kind = {
    "alg": (38, 5),
    "key": (15, 3),
    "tipc": (30, 2),
    "rds": (21, 5),
    "smc": (43, 1),
    "qipcrtr": (42, 2),
    "bluetooth": (31, 3),
    "can": (29, 3),
    "kcm": (41, 2),
    "nfc": (39, 5),
    "x25": (9, 5),
    "ax25": (3, 2),
    "appletalk": (5, 2),
    "llc": (26, 1),
    "pppox": (24, 1),
    "phonet": (35, 2),
    "caif": (37, 5),
}[CASE]
one = make_socket(family, kind, 2 if CASE == "key" else 0)
end(leaks=[f"a socket of family {family}"] if one is not None else [])
