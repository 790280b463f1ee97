"""gate-relay: A process in the box that relays for another.

Does: a relay on the box's loopback to the proxy, a request for a denied name through it. Must happen: the same decision.
"""

import errno
import json
import os
import socket
import struct
import sys
import threading

ROUTE = "gate-relay"
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


def http(one, target, host, *more, method="GET", body=b""):
    """One request on a connection; what came back, the connection then being closed."""
    if isinstance(one, int):
        return b""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    attempt(one.sendall, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return listen_for(one)[0]


def status(answer):
    """The status of an HTTP answer, 0 without one."""
    words = answer.split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


def rule(answer):
    """What the gate says of its own decision, in the header made for it."""
    found = [line for line in answer.split(b"\r\n") if line.lower().startswith(b"x-caisson-decision:")]
    return found[0].partition(b":")[2].strip().decode("ascii", "replace")[:200] if found else ""


server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()


def relay():
    peer, _ = server.accept()
    far = socket.create_connection(("127.0.0.1", WORLD["proxy_port"]), 5)
    far.sendall(peer.recv(65536))
    while chunk := far.recv(65536):
        peer.sendall(chunk)
    peer.close()


threading.Thread(target=relay, daemon=True).start()
wrong, got = tcp(
    *server.getsockname(),
    f"GET http://web.denied.test/{NONCE} HTTP/1.1\r\nHost: web.denied.test\r\nConnection: close\r\n\r\n".encode(),
)
end(errno=wrong, status=status(got), decision=rule(got))
