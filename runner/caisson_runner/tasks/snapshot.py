"""From a task to what the box engine needs: the snapshot its runs are forked from, and the limits of its box."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from caisson_runner.boxes.engine import BoxLimits
from caisson_runner.boxes.store import SnapshotSpec
from caisson_runner.tasks.errors import UnsupportedTask
from caisson_runner.tasks.harbor import resolve_env
from caisson_runner.tasks.task import Task


def parse_bases(options: tuple[str, ...]) -> dict[str, str]:
    """`--base IMAGE=host` and `--base IMAGE=PATH`, read strictly. Raises UnsupportedTask."""
    bases = {}
    for option in options:
        image, separator, target = option.partition("=")
        if not separator or not image or not target:
            raise UnsupportedTask(f"--base {option}: must read IMAGE=host or IMAGE=PATH of a root filesystem tar")
        if target != "host" and not Path(target).is_file():
            raise UnsupportedTask(f"--base {option}: no file {target!r}; it must be `host` or a root filesystem tar")
        bases[image] = target
    return bases


def snapshot_spec(task: Task, bases: Mapping[str, str] | None = None) -> SnapshotSpec:
    """What the task's box looks like before the agent: its base, its files, its environment. No tests, no solution."""
    base = task.base(bases or {})
    env = dict(task.recipe.env) if task.recipe is not None else {}
    env.update(resolve_env(task.harbor.env, task.path / "task.toml", "environment.env"))
    files: dict[str, Path | bytes] = dict(task.files())
    run = list(task.recipe.runs) if task.recipe is not None else []
    if not any(target.startswith(task.workdir.rstrip("/") + "/") for target in files) and task.workdir != "/app":
        run.append(f"mkdir -p {shlex.quote(task.workdir)}")
    return SnapshotSpec(
        base=base if base == "host" else Path(base),
        files=files,
        env=env,
        workdir=task.workdir,
        run=tuple(run),
        label=f"task/{task.id}",
    )


def box_limits(task: Task, limits: BoxLimits | None = None) -> BoxLimits:
    """The agent's box: the task's own sizes and times where it names them, else the given ones."""
    limits = limits or BoxLimits()
    harbor = task.harbor
    if harbor.memory_mb is not None:
        limits = replace(limits, memory_bytes=harbor.memory_mb << 20)
    if harbor.storage_mb is not None:
        limits = replace(limits, disk_bytes=harbor.storage_mb << 20)
    if harbor.cpus is not None:
        limits = replace(limits, cpu_millis=int(harbor.cpus * 1000))
    if harbor.agent_timeout_s is not None:
        limits = replace(limits, wall_s=harbor.agent_timeout_s)
    return limits
