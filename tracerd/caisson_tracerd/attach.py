"""Attaching: a container that somebody else started becomes a box where it is. Nothing is moved, made or configured.

Only root may attach any cgroup. A plain user may attach a container that carries the label ``caisson.uid`` with their
uid; who may label containers is root on the host anyway.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_tracerd.cgroup import v2_root
from caisson_tracerd.errors import NotYours, UsageError
from caisson_tracerd.layout import Layout

LABEL: Final = "caisson.uid"
DEFAULT_HOST: Final = "unix:///var/run/docker.sock"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_TIMEOUT_S: Final = 5
_ANSWER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be witnessed. ``level`` is its depth below the kernel's own root, as the programs count."""

    path: Path
    level: int
    container: str = ""
    name: str = ""


def find(container: str, cgroup: str, docker_host: str, uid: int, layout: Layout) -> Target:
    """The cgroup that is meant, checked against who asks. Blocking. UsageError or NotYours with what to do."""
    root = v2_root()
    if root is None:
        raise UsageError("no version 2 cgroup hierarchy is mounted, so containers cannot be told apart")
    if bool(container) == bool(cgroup):
        raise UsageError("say what to attach to: either a container or a cgroup path")
    if uid and cgroup:
        raise NotYours("only root may attach to a cgroup; name a container that carries your label")
    if uid and docker_host:
        raise NotYours("only root may name another Docker daemon")
    if cgroup:
        path = Path(os.path.normpath(cgroup))
        found = Target(path if path.is_relative_to(root) else root / cgroup.lstrip("/"), 0)
        if not found.path.is_relative_to(root) or ".." in Path(cgroup).parts:
            raise UsageError(f"cgroup {cgroup[:200]} is not below {root}")
    else:
        found = _container(container, docker_host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST, uid, root)
    if not found.path.is_dir():
        raise UsageError(f"cgroup {found.path} does not exist; is the container running?")
    below = found.path.relative_to(root)
    _refuse_foolish(below, root, layout)
    return Target(found.path, len(below.parts) + layout.box_level - 3, found.container, found.name)


def _refuse_foolish(below: Path, root: Path, layout: Layout) -> None:
    if not below.parts:
        raise UsageError("that is the root cgroup, in which everything on this host is; there is no container to tell")
    if below.parts[0] == layout.cgroup_parent:
        raise UsageError(f"cgroup /{below} belongs to a box of ours; it has its witness")
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    if (root / own[1:]).is_relative_to(root / below):
        raise UsageError(f"cgroup /{below} holds tracerd itself; it would record its own recording")


def _container(name: str, host: str, uid: int, root: Path) -> Target:
    if not _NAME.fullmatch(name):
        raise UsageError(f"container {name[:80]!r} is no name and no id")
    said = ask_docker(host, f"/containers/{name}/json")
    try:
        identity, title = str(said["Id"]), str(said.get("Name", "")).lstrip("/")
        labels = said["Config"].get("Labels") or {}
        running, pid = bool(said["State"]["Running"]), int(said["State"]["Pid"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"what answers at {host} is no Docker daemon") from None
    if uid and labels.get(LABEL) != str(uid):
        raise NotYours(f"container {name} does not carry your label; start it with --label {LABEL}={uid}")
    if not running or pid <= 0:
        raise UsageError(f"container {name} is not running; start it first")
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    path = next((line[3:] for line in lines if line.startswith("0::")), "")
    parts = Path(path).parts[1:]
    # its init may sit in a child of the container's cgroup; the container is the topmost folder with its id
    own = next((index for index, part in enumerate(parts) if identity in part), None)
    if own is None:
        raise UsageError(
            f"container {name} has no version 2 cgroup of its own here (its init is in {path[:200] or 'none'}); "
            "restart it with --cgroup-parent, or run a Docker daemon that uses version 2"
        )
    return Target(root.joinpath(*parts[: own + 1]), 0, identity, title)


def ask_docker(host: str, path: str) -> dict[str, Any]:
    """One GET of the Docker API over a unix socket. UsageError with what to do."""
    import http.client  # slow to import, and needed only when somebody attaches
    from urllib.parse import urlparse

    place = urlparse(host)
    if place.scheme != "unix":
        raise UsageError(f"Docker at {host[:200]} is not on a unix socket; only containers of this host can be seen")

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(_TIMEOUT_S)
            self.sock.connect(place.path)

    connection = Connection("docker", timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as problem:
        raise UsageError(f"no Docker daemon answers at {place.path} ({problem}); name it with DOCKER_HOST") from None
    finally:
        connection.close()
    if answer.status == 404:
        raise UsageError(f"Docker at {place.path} knows no container {path.split('/')[2][:80]}")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if answer.status != 200 or not isinstance(found, dict):
        raise UsageError(f"Docker at {place.path} answered {answer.status}; see: docker inspect")
    return found
