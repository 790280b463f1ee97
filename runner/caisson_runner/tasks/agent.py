"""What stands in for the agent in one run: the oracle, nothing, a scripted behaviour, or any command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caisson_runner.tasks.behaviour import Behaviour, load_behaviour
from caisson_runner.tasks.errors import UnknownBehaviour, UnsupportedTask
from caisson_runner.tasks.harbor import resolve_env
from caisson_runner.tasks.task import Task


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """How to start it: `argv` in the workdir, `binds` (directory here, path in the box) read-only."""

    name: str
    kind: str  # oracle, nop, behaviour, command
    argv: tuple[str, ...]
    binds: tuple[tuple[Path, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None


def plan_agent(agent: str | Sequence[str], task: Task, roots: tuple[Path, ...] = ()) -> AgentPlan:
    """Resolve what a person or a suite wrote.

    A list is a command. A string is `oracle`, `nop`, the id of a behaviour, or, when it holds a space or a slash,
    a shell command. Raises UnknownBehaviour or UnsupportedTask.
    """
    if not isinstance(agent, str):
        if not agent:
            raise UnknownBehaviour("the agent's command is empty")
        return AgentPlan(agent[0].rsplit("/", 1)[-1] or agent[0], "command", tuple(agent))
    if agent == "nop":
        return AgentPlan("nop", "nop", ("/bin/true",))
    if agent == "oracle":
        solution = task.solution_dir
        if solution is None:
            raise UnsupportedTask(f"{task.path / 'solution/solve.sh'}: is missing, so there is no oracle for {task.id}")
        env = resolve_env(task.harbor.solution_env, task.path / "task.toml", "solution.env")
        return AgentPlan("oracle", "oracle", ("/bin/bash", "/solution/solve.sh"), ((solution, "/solution"),), env)
    if re.search(r"[\s/]", agent):
        return AgentPlan(agent.split()[0].rsplit("/", 1)[-1], "command", ("/bin/sh", "-c", agent))
    behaviour = load_behaviour(agent, roots)
    return AgentPlan(behaviour.id, "behaviour", behaviour.command, ((behaviour.directory, "/agent"),), {}, behaviour)
