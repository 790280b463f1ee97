"""dns-multicast: Names asked for on the link: mDNS, LLMNR, NetBIOS.

Does: sends a question with the nonce to the group's address. Must happen: there is no link.
"""

import errno
import json
import os
import socket
import struct
import sys

ROUTE = "dns-multicast"
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


def talk(host, kind):
    """A socket of the address's family."""
    try:
        return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            end("inapplicable", "this kernel has no IPv6")
        raise


def udp(host, port, data, seconds=1):
    """Send one datagram and listen a moment: the errno and what came back."""
    with patient(talk(host, socket.SOCK_DGRAM), seconds) as one:
        wrong = attempt(one.sendto, data, (host, port))
        tried("socket", "sendto", addr=inet(host, port), errno=wrong)
        if wrong:
            return wrong, b""
        try:
            return 0, one.recv(65536)
        except OSError as error:
            return error.errno, b""


def query(labels, kind=1, number=0x4243, count=1):
    """A DNS question; labels are bytes."""
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">HHHHHH", number, 0x0100, count, 0, 0, 0) + (name + struct.pack(">HH", kind, 1)) * max(count, 1)


host, port = {
    "mdns": ("224.0.0.251", 5353),
    "llmnr": ("224.0.0.252", 5355),
    "netbios": ("192.0.2.137", 137),
    "mdns-6": ("ff02::fb", 5353),
}[CASE]
wrong, got = udp(host, port, query([NONCE.encode(), b"local"]))
end(errno=wrong, got=got[:100])
