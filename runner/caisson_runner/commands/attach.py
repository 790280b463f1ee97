"""`caisson-run attach`."""

from __future__ import annotations

import os
from pathlib import Path

from caisson_runner.commands.common import OUT, OutExists, emit, finish, program, say, stamp


def attach_command(
    container: str, out: Path | None, seconds_: float | None, cgroup: str, docker_host: str, as_json: bool
) -> int:
    """`caisson-run attach`."""
    from caisson_runner.attach import record
    from caisson_runner.session import BadOption

    if bool(container) == bool(cgroup):
        raise BadOption("say what to attach to: either a CONTAINER or --cgroup PATH")
    target = out or OUT / f"attach-{''.join(c if c.isalnum() else '-' for c in container or 'cgroup')}-{stamp()}"
    if target.exists():
        raise OutExists(f"{target}: is there already; choose another --out or remove it")
    host = docker_host or (os.environ.get("DOCKER_HOST", "") if os.geteuid() == 0 and container else "")
    after = f", after {seconds_:g} s" if seconds_ else ""
    say(f"attaching to {container or cgroup}; it ends with the container{after}, or with Ctrl-C")
    found = finish(record(target, container, cgroup=cgroup, docker_host=host, seconds=seconds_))
    if as_json:
        emit({"bundle": str(target), **found})
        return 0
    from caisson_runner.bundle.attached import lines_of

    for line in lines_of(found, everything=False):
        print(line)
    print(f"evidence      {target}  ({program()} bundle show {target})")
    return 0
