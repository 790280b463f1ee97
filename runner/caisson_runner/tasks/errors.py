"""The mistakes a task, a suite or a behaviour can hold. All are the user's to mend: exit code 2, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from caisson_runner.errors import CaissonError


class ScenarioError(CaissonError):
    """Something in a task directory, a suite or a behaviour is not as it must be."""

    exit_code: ClassVar[int] = 2


class TaskNotFound(ScenarioError):
    """No task directory at this place."""


class Malformed(ScenarioError):
    """A file does not say what its schema demands; the message opens with file, line and key."""

    def __init__(self, file: Path | str, key: str, problem: str, line: int | None = None) -> None:
        at = f"{file}:{line}" if line else str(file)
        super().__init__(f"{at}: {key}: {problem}" if key else f"{at}: {problem}")
        self.file, self.key, self.problem, self.line = str(file), key, problem, line


class TaskMalformed(Malformed):
    """`task.toml` or `caisson.toml` is wrong."""


class SuiteMalformed(Malformed):
    """A suite file, or a behaviour's `behaviour.toml`, is wrong."""


class UnknownBehaviour(ScenarioError):
    """A suite or a command names a behaviour that does not exist."""


class UnsupportedTask(ScenarioError):
    """The task is well formed and asks for something this version does not do; the message names it and why."""
