"""ip-tun-wireguard: A tunnel device.

Does: opens the tun node, or adds a WireGuard, veth or dummy link. Must happen: no node, no link.
"""

import errno
import json
import os
import socket
import struct
import sys

ROUTE = "ip-tun-wireguard"
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


def open_only(path, flags):
    """Open, and close at once: the errno. Nothing is ever written."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return error.errno
    tried("open", "openat", path=os.fsencode(path), errno=0)
    return 0


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


if CASE == "tun":
    wrong = open_only("/dev/net/tun", os.O_RDWR)
    end(errno=wrong, leaks=["/dev/net/tun opens"] if wrong == 0 else [])


def attribute(number, body):
    return struct.pack("=HH", 4 + len(body), number) + body + bytes(-len(body) % 4)


body = bytes(16) + attribute(3, b"c0\0") + attribute(18, attribute(1, CASE.encode()))
wrong, _ = netlink(16, 0x604, body)
end(answer=wrong, leaks=[f"a {CASE} link"] if wrong == 0 else [])
