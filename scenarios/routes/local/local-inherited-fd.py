"""local-inherited-fd: Descriptors that came along by mistake: sockets, folders, files of the outside.

Does: lists its own. Must happen: stdin, stdout and stderr, pipes each, and nothing more.
"""

import json
import os
import sys

ROUTE = "local-inherited-fd"
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


found = {}
for name in os.listdir("/proc/self/fd"):
    try:
        found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue
own = [fd for fd, what in found.items() if what.startswith("/proc/")]
extra = [f"{fd}: {what}" for fd, what in sorted(found.items()) if fd > 2 and fd not in own]
odd = [
    f"{fd}: {what}"
    for fd, what in sorted(found.items())
    if fd <= 2 and not what.startswith("pipe:") and what != "/dev/null"
]
tried("open", "openat", path=b"/proc/self/fd", errno=0)
end(found=sorted(found.items()), leaks=extra + odd)
