"""local-cgroup-bpf: Control groups and pinned kernel programs: files whose writing runs a program on the host.

Does: opens them for writing, and closes them; nothing is ever written. Must happen: none opens.
"""

import errno
import json
import os
import sys

ROUTE = "local-cgroup-bpf"
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


paths = [
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/notify_on_release",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/memory/tasks",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/pids/tasks",
    "/sys/fs/cgroup/unified/cgroup.procs",
    "/sys/fs/cgroup/cgroup.freeze",
    "/sys/fs/cgroup/devices/devices.allow",
    "/sys/fs/bpf/caisson",
    "/run/caisson/bpf",
    "/sys/fs/bpf",
]
opened = [path for path in paths if not open_only(path, os.O_WRONLY)]
for top in ("/sys/fs/cgroup", "/sys/fs/bpf"):
    try:
        os.mkdir(f"{top}/{NONCE}")
        os.rmdir(f"{top}/{NONCE}")
        opened.append(top)
    except OSError as error:
        tried("change", "mkdir", path=f"{top}/{NONCE}".encode(), errno=error.errno)
end(tried=len(paths), leaks=opened)
