"""What this host offers to the local engine, tried rather than guessed. For ``caisson-run doctor``."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from caisson_runner.boxes import seccomp
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine, find_bwrap
from caisson_runner.boxes.store import SnapshotSpec, Store, home
from caisson_runner.errors import CaissonError

_ROOM_WANTED = 1 << 30


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing boxes need. ``remedy`` is what to do when it is not there."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def probe() -> list[Requirement]:
    """Every requirement, the last one a real box made, used and dropped."""
    return [_bubblewrap(), _seccomp(), _cgroups(), _store(), _box()]


def _bubblewrap() -> Requirement:
    try:
        return Requirement("bubblewrap", True, find_bwrap())
    except CaissonError as problem:
        return Requirement("bubblewrap", False, str(problem), "apt-get install bubblewrap")


def _seccomp() -> Requirement:
    try:
        program = seccomp.build()
    except CaissonError as problem:
        return Requirement("seccomp", False, str(problem), "apt-get install libseccomp2")
    return Requirement("seccomp", True, f"filter of {len(program) // 8} instructions")


def _cgroups() -> Requirement:
    if os.geteuid() != 0:
        detail = "plain user: memory and process limits by rlimits and by watching, freeze by signals"
        return Requirement("cgroups", True, detail)
    from caisson_tracerd.cgroup import Cgroup, Limits

    try:
        made = Cgroup.create(f"probe-{os.getpid()}", Limits(1 << 30, 64, 1000))
    except CaissonError as problem:
        return Requirement("cgroups", False, str(problem), "mount -t cgroup2 none /sys/fs/cgroup")
    made.remove()
    if made.missing:
        return Requirement("cgroups", True, f"{made.path.parent}; no controller for {', '.join(made.missing)}")
    return Requirement("cgroups", True, f"{made.path.parent}, limits by memory, pids and cpu controllers")


def _store() -> Requirement:
    place = home()
    try:
        store = Store(place)
    except (CaissonError, OSError) as problem:
        return Requirement("store", False, f"{place}: {problem}", "set CAISSON_HOME to a folder you may write to")
    free = shutil.disk_usage(store.home).free
    detail = f"{place}, {free >> 20} MiB free"
    return Requirement("store", free >= _ROOM_WANTED, detail, "free 1 GiB, or set CAISSON_HOME to another disk")


def _box() -> Requirement:
    async def run() -> str:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            async with LocalEngine(Store(Path(folder) / "store")) as engine:
                async with engine.fork(await engine.snapshot(SnapshotSpec())) as box:
                    done = await (await box.start(Command(("/usr/bin/true",)))).wait()
                    if not done.ok:
                        raise CaissonError(f"a command in a box ended with {done.outcome.value} {done.detail}")
            return engine.name

    try:
        return Requirement("box", True, f"{asyncio.run(run())}: made, used and dropped one")
    except CaissonError as problem:
        return Requirement("box", False, str(problem), "see the message; docs/boxes.md lists what a host must allow")
