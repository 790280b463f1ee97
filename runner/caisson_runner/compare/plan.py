"""The whole comparison: which eyes there are here, every route under each of them, the workloads, the probe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store
from caisson_runner.compare import rig, visible, workloads
from caisson_runner.compare.errors import CompareError
from caisson_runner.compare.eyes import Eye, NoEye, PollEye, StraceEye, WitnessEye, ebpf_eye
from caisson_runner.compare.rig import Outcome
from caisson_runner.compare.routes import Route
from caisson_runner.compare.visible import Visibility
from caisson_runner.compare.workloads import Load
from caisson_runner.witness import WitnessUnavailable

Say = Callable[[str], None]
AT_ONCE: Final = 6
"""Boxes of routes at a time: most of a box's life is waiting for the kernel."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was measured."""

    host: str
    engine: str
    eyes: tuple[str, ...]
    absent: tuple[str, ...]
    """Sentences on witnesses this host does not have."""
    outcomes: tuple[Outcome, ...]
    loads: tuple[Load, ...]
    visibility: tuple[Visibility, ...]

    def differences(self) -> list[Outcome]:
        """What is not as the register expects."""
        return [one for one in self.outcomes if not one.right]

    def blind(self) -> list[Outcome]:
        """Controls that a witness other than polling did not see: then the rig is broken, not the witness."""
        return [
            one
            for one in self.outcomes
            if one.route.control and one.kind in ("ebpf", "strace") and one.word not in ("seen", "inapplicable")
        ]

    def visible_differences(self) -> list[Visibility]:
        """Witnesses that show and must not, or do not and should."""
        return [one for one in self.visibility if one.as_expected is False]

    @property
    def good(self) -> bool:
        return not (self.differences() or self.blind() or self.visible_differences())


def find_eyes(quick: bool, sockets: Sequence[Path]) -> tuple[list[Eye], list[str]]:
    """The witnesses this host has, and what is absent and why. ``sockets`` are those of further tracerds."""
    eyes: list[Eye] = []
    absent: list[str] = []
    for socket in sockets or (None,):
        try:
            eyes.append(ebpf_eye(socket))
        except WitnessUnavailable as problem:
            absent.append(f"ebpf: {problem}")
    try:
        eyes.append(StraceEye())
    except WitnessUnavailable as problem:
        absent.append(f"strace: {problem}")
    eyes += [PollEye(interval) for interval in ((10,) if quick else (1, 10, 100))]
    return eyes, absent


@asynccontextmanager
async def open_engines(
    allows: Sequence[tuple[str, ...]], store: Store
) -> AsyncIterator[dict[tuple[str, ...], LocalEngine]]:
    """One engine for each set of system call groups."""
    async with AsyncExitStack() as stack:
        yield {
            allow: await stack.enter_async_context(LocalEngine(store, allow=allow)) for allow in sorted({*allows, ()})
        }


async def run(
    routes: Sequence[Route], eyes: Sequence[Eye], absent: Sequence[str], *, quick: bool, loads: bool, say: Say,
    store: Store | None = None,
) -> Comparison:  # fmt: skip
    """Run everything: routes several at a time, what is timed one at a time."""
    measured: list[Load] = []
    seen_inside: list[Visibility] = []
    async with open_engines([route.allow for route in routes], store or Store()) as engines:
        plain = engines[()]
        snapshot = await plain.snapshot(SnapshotSpec(label="compare"))
        outcomes = await _perform_all(engines, snapshot, routes, (*eyes, NoEye()), say)
        if loads:
            say("workloads and the probe")
            usual = [eye.as_in_a_run() if isinstance(eye, WitnessEye) else eye for eye in eyes]
            measured = await workloads.measure(plain, (NoEye(), *usual), 1 if quick else 3)
            seen_inside = await visible.compare(plain, snapshot, usual, rounds=1 if quick else 2)
    return Comparison(
        f"Linux {platform.release()} {platform.machine()}, {os.cpu_count()} processors", plain.name,
        tuple(eye.name for eye in eyes), tuple(absent), tuple(outcomes), tuple(measured), tuple(seen_inside),
    )  # fmt: skip


async def _perform_all(
    engines: Mapping[tuple[str, ...], LocalEngine], snapshot: Snapshot, routes: Sequence[Route], eyes: Sequence[Eye],
    say: Say,
) -> list[Outcome]:  # fmt: skip
    room, alone = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
    done = 0

    async def one(route: Route, eye: Eye) -> Outcome:
        nonlocal done
        # Pollers would take each other's time in one process: one after the other.
        async with alone if eye.kind == "polling" else contextlib.nullcontext(), room:
            try:
                outcome = await rig.perform(engines[route.allow], snapshot, route, eye)
            except CompareError as problem:
                raise type(problem)(f"{route.name} under {eye.name}: {problem}") from None
        done += 1
        if done % 100 == 0:
            say(f"{done} of {len(routes) * len(eyes)} boxes done")
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(route, eye)) for route in routes for eye in eyes]
    return [task.result() for task in tasks]
