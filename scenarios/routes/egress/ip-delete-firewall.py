"""ip-delete-firewall: Rules flushed, routes and addresses added, as the box's root.

Does: a new address, a new route, a deleted local route, by netlink; a netfilter socket. Must happen: all refused. (Were
they not, connectivity could only be lost.)
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-delete-firewall"
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


def patient(one, seconds=8):
    """Time limits the kernel keeps, so that calls stay plain blocking ones."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        one.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    return one


def make_socket(family, kind, protocol=0):
    """A socket, or None; either way it is in the tries."""
    try:
        one = socket.socket(family, kind, protocol)
    except OSError as error:
        tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=error.errno)
        return None
    tried("socket", "socket", family=family, type=kind & 15, protocol=protocol, errno=0)
    return one


def netlink(kind, flags, body, protocol=0):
    """One request on a netlink socket: the errno of the answer, None without a socket, and the answer's bytes."""
    one = make_socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    if one is None:
        return None, b""
    with patient(one):
        one.bind((0, 0))
        request = struct.pack("=IHHII", 16 + len(body), kind, flags | 1, 1, 0) + body
        one.send(request)
        try:
            answer = one.recv(1 << 16)
        except OSError as error:
            return error.errno, b""
    if struct.unpack("=H", answer[4:6])[0] == 2:
        return -struct.unpack("=i", answer[16:20])[0], answer
    return 0, answer


address = struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([192, 0, 2, 9]))
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
lost = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 0, 254, 2, 0) + struct.pack("=HHI", 8, 4, 1)
if CASE == "netfilter":
    end(opened=make_socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) is not None)
kind, flags, body = {"address": (20, 0x604, address), "route": (24, 0x604, route), "unroute": (25, 4, lost)}[CASE]
wrong, _ = netlink(kind, flags, body)
end(answer=wrong, leaks=[f"{CASE} was changed"] if wrong == 0 else [])
