"""gate-connect-port: Another port of an allowed host, by CONNECT.

Does: CONNECT to 22, 25 and 8443, the nonce through what opens. Must happen: refused at CONNECT.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "gate-connect-port"
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


def status(answer):
    """The status of an HTTP answer, 0 without one."""
    words = answer.split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


def rule(answer):
    """What the gate says of its own decision, in the header made for it."""
    found = [line for line in answer.split(b"\r\n") if line.lower().startswith(b"x-caisson-decision:")]
    return found[0].partition(b":")[2].strip().decode("ascii", "replace")[:200] if found else ""


def tunnel(host, port):
    """A tunnel asked for by CONNECT: the socket, the status, what was said."""
    one = patient(socket.socket())
    wrong = attempt(one.connect, ("127.0.0.1", WORLD["proxy_port"]))
    tried("connect", "connect", addr=inet("127.0.0.1", WORLD["proxy_port"]), errno=wrong)
    if wrong:
        return None, 0, b""
    attempt(one.sendall, f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    try:
        got = one.recv(65536)
    except OSError:
        got = b""
    return one, status(got), got


answers = []
for port in (22, 25, 8443):
    one, code, said = tunnel("web.allowed.test", port)
    if one is not None and code == 200:
        attempt(one.sendall, NONCE.encode())
        listen_for(one)
    answers.append([port, code, rule(said)])
end(answers=answers, leaks=[f"a tunnel to port {port}" for port, code, _ in answers if code == 200])
