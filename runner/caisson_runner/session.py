"""What all runs of one command share: the engine, the witness, and one snapshot and one examiner for each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

from caisson_runner.boxes.engine import BoxLimits, Engine
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec
from caisson_runner.errors import CaissonError
from caisson_runner.tasks import Task
from caisson_runner.verify.examiner import Examiner, open_examiner
from caisson_runner.witness import Witness, choose


class BadOption(CaissonError):
    """An option's value does not make sense."""

    exit_code: ClassVar[int] = 2


def parse_bases(options: Sequence[str]) -> dict[str, str]:
    """`IMAGE=PATH` options as a mapping; PATH is `host` or a root filesystem tar that exists."""
    bases: dict[str, str] = {}
    for option in options:
        image, _, path = option.rpartition("=")
        if not image or not path:
            raise BadOption(f"--base {option}: write it as IMAGE=PATH, for example ubuntu:24.04=ubuntu.tar")
        if path != "host" and not Path(path).is_file():
            raise BadOption(f"--base {option}: no file {path}; give a root filesystem tar, or `host`")
        bases[image] = path
    return bases


def task_limits(task: Task) -> BoxLimits:
    """The agent's limits: Harbor's where the task names them, ours elsewhere."""
    harbor, ours = task.harbor, BoxLimits()
    return BoxLimits(
        memory_bytes=harbor.memory_mb << 20 if harbor.memory_mb else ours.memory_bytes,
        disk_bytes=harbor.storage_mb << 20 if harbor.storage_mb else ours.disk_bytes,
        cpu_millis=int(harbor.cpus * 1000) if harbor.cpus else ours.cpu_millis,
        wall_s=task.agent_timeout_s or ours.wall_s,
    )


def snapshot_spec(task: Task, bases: Mapping[str, str]) -> SnapshotSpec:
    """The task's environment as a snapshot to make."""
    recipe = task.recipe
    base = task.base(bases)
    return SnapshotSpec(
        base=base if base == "host" else Path(base),
        files=task.files(),
        env={**(recipe.env if recipe is not None else {}), **task.harbor.env},
        workdir=task.workdir,
        run=recipe.runs if recipe is not None else (),
        label=task.name,
    )


class Session:
    """Made by `open_session`. Snapshots and examiners are made on first use and shared from then on."""

    def __init__(self, engine: Engine, witness: Witness, bases: Mapping[str, str], stack: AsyncExitStack) -> None:
        self.engine, self.witness, self.bases = engine, witness, bases
        self._stack = stack
        self._lock = asyncio.Lock()
        self._snapshots: dict[Path, Snapshot] = {}
        self._examiners: dict[Path, Examiner | None] = {}

    async def snapshot(self, task: Task) -> Snapshot:
        """The task's snapshot: found in the store by its content, or made now."""
        async with self._lock:
            if task.path not in self._snapshots:
                self._snapshots[task.path] = await self.engine.snapshot(snapshot_spec(task, self.bases))
            return self._snapshots[task.path]

    async def examiner(self, task: Task) -> Examiner | None:
        """The task's examiner in its own room; None for tasks that are graded by scripts alone."""
        async with self._lock:
            if task.path not in self._examiners:
                self._examiners[task.path] = await self._stack.enter_async_context(open_examiner(self.engine, task))
            return self._examiners[task.path]


@asynccontextmanager
async def open_session(witness: str = "auto", bases: Sequence[str] = ()) -> AsyncIterator[Session]:
    """Choose engine and witness for this host and user, and sweep what a killed runner left behind."""
    mapped = parse_bases(bases)
    chosen = await asyncio.to_thread(choose, witness)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(LocalEngine())
        yield Session(engine, chosen, mapped, stack)
