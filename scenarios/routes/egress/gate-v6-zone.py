"""gate-v6-zone: An IPv6 literal with a zone that looks like an allowed name.

Does: CONNECT and GET for it. Must happen: refused.
"""

import errno
import json
import os
import socket
import struct
import sys

ROUTE = "gate-v6-zone"
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


def ask(server, data, over="udp"):
    """Put a question to a name server: errno, answer code (None without an answer), addresses given."""
    if over == "tcp":
        wrong, answer = tcp(server, 53, struct.pack(">H", len(data)) + data)
        answer = answer[2:]
    else:
        wrong, answer = udp(server, 53, data, 2)
    if len(answer) < 12:
        return wrong, None, []
    given = []
    count = struct.unpack(">H", answer[6:8])[0]
    at = len(data)
    for _ in range(count):
        if at + 12 > len(answer):
            break
        at += 2 if answer[at] & 0xC0 else answer.index(b"\0", at) - at + 1
        kind, _, _, size = struct.unpack(">HHIH", answer[at : at + 10])
        if kind in (1, 28):
            family = socket.AF_INET if kind == 1 else socket.AF_INET6
            given.append(socket.inet_ntop(family, answer[at + 10 : at + 10 + size]))
        at += 10 + size
    return wrong, answer[3] & 15, given


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


def proxy(data):
    """Say something to the proxy that a box may ask for by name, and hear the answer."""
    wrong, got = tcp("127.0.0.1", WORLD["proxy_port"], data)
    return wrong, got


answers = []
for host in (
    "[fe80::1%25web.allowed.test]",
    "[fe80::1%web.allowed.test]",
    "[2001:db8::80%25.allowed.test]",
    "[::1%lo]",
):
    _, got = proxy(f"GET http://{host}/{NONCE} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    _, said = proxy(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    answers.append([host, status(got), rule(got), status(said)])
end(answers=answers, leaks=[f"{host} is let through" for host, *codes in answers if 200 in codes])
