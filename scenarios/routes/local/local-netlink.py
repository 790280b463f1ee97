"""local-netlink: Netlink: what it lets see, and change.

Does: the case's protocol: a dump of links (must show lo alone), other protocols' sockets, a write. Must happen: route
alone opens, and nothing can be written.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "local-netlink"
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


if CASE == "route":
    wrong, answer = netlink(18, 0x300, bytes(16))
    names = [name for _, name in socket.if_nameindex()]
    end(errno=wrong, links=names, leaks=[name for name in names if name != "lo"])
if CASE == "write":
    wrong, _ = netlink(16, 4, struct.pack("=BxHiII", 0, 0, 1, 0, 1))
    end(answer=wrong, leaks=["lo was set down"] if wrong == 0 else [])
number = {
    "sock-diag": 4,
    "netfilter": 12,
    "audit": 9,
    "generic": 16,
    "uevent": 15,
    "xfrm": 6,
    "connector": 11,
    "selinux": 7,
}[CASE]
one = make_socket(socket.AF_NETLINK, socket.SOCK_RAW, number)
end(leaks=[f"netlink protocol {number}"] if one is not None else [])
