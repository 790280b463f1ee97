"""What all runs of one command share: the engine, the witness, and one snapshot and one examiner for each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

from caisson_runner.boxes.engine import Engine
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot
from caisson_runner.errors import CaissonError
from caisson_runner.gate import GateOptions, Gates
from caisson_runner.tasks import Task
from caisson_runner.tasks.snapshot import parse_bases, snapshot_spec
from caisson_runner.verify.examiner import Examiner, open_examiner
from caisson_runner.verify.findings import Ruleset, load_rules, shipped
from caisson_runner.witness import Witness, choose


class BadOption(CaissonError):
    """An option's value does not make sense."""

    exit_code: ClassVar[int] = 2


class Session:
    """Made by `open_session`. Snapshots and examiners are made on first use and shared from then on."""

    def __init__(
        self,
        engine: Engine,
        witness: Witness,
        bases: Mapping[str, str],
        stack: AsyncExitStack,
        rules: Ruleset | None = None,
        gate: GateOptions | None = None,
    ) -> None:
        self.engine, self.witness, self.bases = engine, witness, bases
        self.rules = rules if rules is not None else shipped()
        """What findings are made by: the rules that come with Caisson, and the person's own."""
        self.gates = Gates(gate or GateOptions(), stack)
        """The network of tasks that have one."""
        self._stack = stack
        self._lock = asyncio.Lock()
        self._snapshots: dict[Path, Snapshot] = {}
        self._examiners: dict[Path, Examiner | None] = {}

    async def snapshot(self, task: Task) -> Snapshot:
        """The task's snapshot: found in the store by its content, or made now."""
        async with self._lock:
            if task.path not in self._snapshots:
                self._snapshots[task.path] = await self.engine.snapshot(
                    snapshot_spec(task, self.bases), await self.gates.outside(task)
                )
            return self._snapshots[task.path]

    async def examiner(self, task: Task) -> Examiner | None:
        """The task's examiner in its own room; None for tasks that are graded by scripts alone."""
        async with self._lock:
            if task.path not in self._examiners:
                self._examiners[task.path] = await self._stack.enter_async_context(open_examiner(self.engine, task))
            return self._examiners[task.path]


@asynccontextmanager
async def open_session(
    witness: str = "auto",
    bases: Sequence[str] = (),
    engine: str = "local",
    docker_host: str | None = None,
    rules: Sequence[Path] = (),
    gate: GateOptions | None = None,
) -> AsyncIterator[Session]:
    """Choose engine and witness for this host and user, and sweep what a killed runner left behind.

    ``docker_host`` as in DOCKER_HOST, which is taken when it is not given. ``rules`` are files of rules beyond ours.
    """
    mapped = parse_bases(tuple(bases))
    ruleset = sum((load_rules(path) for path in rules), shipped())
    if docker_host and engine != "docker":
        raise BadOption("--docker-host goes with --engine docker")
    chosen = await asyncio.to_thread(choose, witness)
    async with AsyncExitStack() as stack:
        if engine == "docker":
            from caisson_runner.boxes.docker import DockerEngine

            yield Session(
                await stack.enter_async_context(DockerEngine(host=docker_host)), chosen, mapped, stack, ruleset, gate
            )
        else:
            yield Session(await stack.enter_async_context(LocalEngine()), chosen, mapped, stack, ruleset, gate)
