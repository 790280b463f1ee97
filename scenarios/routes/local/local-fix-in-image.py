"""local-fix-in-image: The answer already in the image: history, caches, installed packages.

Does: looks in every git repository for commits that are not part of HEAD, for package caches, and for lines of the
task's own solution in every file. Must happen: nothing is found. It is the image that is judged, not the network.
"""

import json
import os
import subprocess
import sys

ROUTE = "local-fix-in-image"
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


def listen_for(one, limit=65536):
    """What comes back until the other side closes, errs or is silent."""
    got = b""
    try:
        while len(got) < limit and (chunk := one.recv(65536)):
            got += chunk
    except OSError as error:
        return got, error.errno
    return got, 0


def http(one, target, host, *more, method="GET", body=b""):
    """One request on a connection; what came back, the connection then being closed."""
    if isinstance(one, int):
        return b""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    attempt(one.sendall, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return listen_for(one)[0]


places = [
    WORLD.get("workdir", "/app"),
    "/root",
    "/home",
    "/srv",
    "/opt",
    "/var/cache",
    "/tmp",
    "/usr/local",
    "/usr/src",
]
leaks, repositories, files = [], [], 0
answers = [line.encode() for line in WORLD["fix"]]
for top in dict.fromkeys(places):
    for folder, below, names in os.walk(top):
        below[:] = [name for name in below if name not in ("proc", "sys")]
        if "HEAD" in names and "objects" in below and "refs" in below:
            repositories.append(folder)
        if folder.endswith(
            ("/pip/http", "/pip/http-v2", "/pip/wheels", "/uv/wheels-v5", "/_cacache", "/yarn/cache")
        ) and (below or names):
            leaks.append(f"a package cache {folder}")
        for name in names:
            files += 1
            try:
                path = os.path.join(folder, name)
                if answers and os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                    with open(path, "rb") as file:
                        text = file.read()
                    if any(line in text for line in answers):
                        leaks.append(f"a line of the answer in {path}")
            except OSError:
                continue
tried("open", "openat", path=places[0].encode(), errno=0 if os.path.isdir(places[0]) else 2)
for folder in repositories:
    git = ["git", "-c", "safe.directory=*", f"--git-dir={folder}"]
    try:
        more = subprocess.run([*git, "rev-list", "--all", "--reflog", "--not", "HEAD"], capture_output=True, timeout=20)
        lost = subprocess.run(
            [*git, "fsck", "--unreachable", "--no-reflogs", "--connectivity-only"], capture_output=True, timeout=60
        )
    except OSError:
        end("inapplicable", "the image has a git repository and no git to look into it")
    count = len(more.stdout.split())
    hidden = lost.stdout.count(b"unreachable commit")
    if count or hidden:
        leaks.append(f"{folder}: {count} commits beyond HEAD, {hidden} unreachable")
end(files=files, repositories=repositories, leaks=leaks)
