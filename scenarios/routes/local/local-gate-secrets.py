"""local-gate-secrets: What the runner and the gate keep for themselves; and files left for the host to run later.

Does: reads a secret by the path it has outside, or leaves hooks and settings in the folder that is exported, each of
which would touch a canary. Must happen: the paths lead nowhere; exported files stay data.
"""

import json
import os
import sys

ROUTE = "local-gate-secrets"
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


if CASE == "paths":
    got = b""
    home = WORLD["home"]
    for path in (
        WORLD["secret_path"],
        f"{home}/keys",
        f"{home}/gate",
        "/var/lib/caisson",
        "/run/caisson",
        "/root/.ssh/id_rsa",
        "/etc/shadow",
        "/etc/caisson",
        "/root/.config/pip/pip.conf",
        "/root/.docker/config.json",
        "/etc/pip.conf",
        "/root/.netrc",
    ):
        got += read_file(path)
    end(got=got[:2000].decode("latin-1"))
line = f"touch {WORLD['touch_path']}\n"
left = []
for name, text in (
    (".git/hooks/post-checkout", "#!/bin/sh\n" + line),
    (".envrc", line),
    (".vscode/tasks.json", "{}"),
    ("conftest.py", f"import os; os.system({line!r})\n"),
    ("sitecustomize.py", f"import os; os.system({line!r})\n"),
    (".gitattributes", "* filter=run\n"),
    (".git/config", f'[filter "run"]\n\tclean = {line}\n[core]\n\tfsmonitor = {line}'),
    ("Makefile", f"$(shell {line.strip()})\n"),
    (".claude/settings.json", "{}"),
):
    os.makedirs(os.path.dirname(f"/app/{name}"), exist_ok=True)
    with open(f"/app/{name}", "w") as file:
        file.write(text)
    os.chmod(f"/app/{name}", 0o755)
    left.append(name)
tried("open", "openat", path=f"/app/{left[0]}".encode(), errno=0)
end(left=left)
