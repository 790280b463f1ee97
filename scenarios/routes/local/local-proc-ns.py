"""local-proc-ns: Other processes by way of /proc: their root, namespaces, environment, memory.

Does: opens what /proc shows of every process but its own. Must happen: there is the box's init and nobody else, and
what it has leads nowhere outside.
"""

import errno
import json
import os
import sys

ROUTE = "local-proc-ns"
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


def open_only(path, flags):
    """Open, and close at once: the errno. Nothing is ever written."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return error.errno
    tried("open", "openat", path=os.fsencode(path), errno=0)
    return 0


def read_file(path, limit=1 << 20):
    """What a file holds, or nothing; either way it is in the tries."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return b""
    tried("open", "openat", path=os.fsencode(path), errno=0)
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


others = sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
got = b""
for pid in others:
    if CASE == "environ":
        got += read_file(f"/proc/{pid}/environ")
    elif CASE == "root":
        for inside in ("etc/hostname", WORLD["secret_path"].lstrip("/")):
            got += read_file(f"/proc/{pid}/root/{inside}")
    elif CASE == "cwd-fd":
        got += read_file(f"/proc/{pid}/cwd/{WORLD['secret_path'].lstrip('/')}")
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                got += read_file(f"/proc/{pid}/fd/{fd}", 4096)
        except OSError as error:
            tried("open", "openat", path=f"/proc/{pid}/fd".encode(), errno=error.errno)
    elif CASE == "mem":
        open_only(f"/proc/{pid}/mem", os.O_RDWR)
    else:
        open_only(f"/proc/{pid}/ns/net", os.O_RDONLY)
strangers = []
for pid in others:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200)
    except OSError:
        continue
    if pid != 1:
        strangers.append(f"process {pid} {words[:80]!r}")
end(others=len(others), got=got[:2000].decode("latin-1"), leaks=strangers)
