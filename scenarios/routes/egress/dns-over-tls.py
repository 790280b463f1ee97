"""dns-over-tls: DNS over TLS.

Does: TLS to port 853 of a resolver, the nonce in the server name. Must happen: nobody listens there.
"""

import errno
import json
import os
import socket
import struct
import sys

ROUTE = "dns-over-tls"
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


def talk(host, kind):
    """A socket of the address's family."""
    try:
        return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            end("inapplicable", "this kernel has no IPv6")
        raise


def tcp(host, port, data, scope=0):
    """Connect, send, listen: the errno and what came back."""
    with patient(talk(host, socket.SOCK_STREAM)) as one:
        where = (host, port, 0, scope) if ":" in host else (host, port)
        wrong = attempt(one.connect, where)
        tried("connect", "connect", addr=inet(host, port, scope), errno=wrong)
        if wrong:
            return wrong, b""
        if wrong := attempt(one.sendall, data):
            return wrong, b""
        return listen_for(one)[::-1]


def hello(name, *extra, versions=(0x0304, 0x0303)):
    """A TLS ClientHello for a server name (None: without one); extra are (number, body) extensions."""

    def block(data, size=2):
        return len(data).to_bytes(size, "big") + data

    offered = [
        (10, block(struct.pack(">HH", 29, 23))),
        (11, b"\1\0"),
        (13, block(struct.pack(">HHHHH", 0x0403, 0x0804, 0x0401, 0x0503, 0x0601))),
        (43, block(b"".join(struct.pack(">H", one) for one in versions), 1)),
        (51, block(struct.pack(">H", 29) + block(os.urandom(32)))),
        *extra,
    ]
    if name is not None:
        offered.insert(0, (0, block(b"\0" + block(name))))
    extensions = b"".join(struct.pack(">H", number) + block(body) for number, body in offered)
    suites = struct.pack(">HHHHH", 0x1301, 0x1302, 0x1303, 0xC02F, 0xC030)
    body = b"\3\3" + os.urandom(32) + block(os.urandom(32), 1) + block(suites) + b"\1\0" + block(extensions)
    return b"\x16\3\1" + block(b"\1" + len(body).to_bytes(3, "big") + body)


wrong, got = tcp("198.51.100.53", 853, hello(NONCE.encode() + b".test"))
end(errno=wrong, got=got[:100])
