"""local-engine-socket: The sockets of container engines and service managers.

Does: connects to the paths they usually have, and to a stand-in outside the box. Must happen: none is there.
"""

import json
import os
import socket
import struct
import sys

ROUTE = "local-engine-socket"
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


def unix(name, kind=socket.SOCK_STREAM):
    """Connect to a unix name (a path, or abstract with a leading NUL): the errno and what came back."""
    with patient(socket.socket(socket.AF_UNIX, kind)) as one:
        wrong = attempt(one.connect, name)
        packed = struct.pack("<H", socket.AF_UNIX) + name + (b"" if name.startswith(b"\0") else b"\0")
        tried("connect", "connect", addr=packed, errno=wrong)
        if wrong:
            return wrong, b""
        attempt(one.sendall, NONCE.encode() + b"\n")
        return listen_for(one)[::-1]


usual = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/caisson/0/tracerd.sock",
    WORLD["unix_path"],
]
got = [[path, *unix(path.encode())] for path in usual]
end(
    got=[[path, wrong, answer[:100]] for path, wrong, answer in got],
    leaks=[path for path, wrong, _ in got if not wrong],
)
