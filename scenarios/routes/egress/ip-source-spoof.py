"""ip-source-spoof: Another box's address as the source.

Does: binds an address that is not its own, connects and asks for what the policy refuses. Must happen: the bind is
refused, or nothing is gained by it: the request is this box's.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "ip-source-spoof"
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


with patient(socket.socket()) as one:
    wrong = attempt(one.bind, ("192.0.2.9", 0))
    tried("socket", "bind", addr=inet("192.0.2.9", 0), errno=wrong)
    if wrong:
        end(errno=wrong)
    wrong = attempt(one.connect, ("198.51.100.7", 80))
    tried("connect", "connect", addr=inet("198.51.100.7", 80), errno=wrong)
    if wrong:
        end(errno=wrong)
    attempt(one.sendall, f"GET /{NONCE} HTTP/1.1\r\nHost: {WORLD['denied']}\r\n\r\n".encode())
    got, _ = listen_for(one)
end(errno=0, got=got[:300])
