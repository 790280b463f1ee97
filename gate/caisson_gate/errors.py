"""The gate's own errors: one family, each message one line that says what happened, to what, and what to do next."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class GateError(CaissonError):
    """The gate, or something it needs, failed: our side or the host."""

    exit_code: ClassVar[int] = 3


class UpstreamCaUnusable(GateError):
    """The file of authorities to trust outside is none."""

    exit_code: ClassVar[int] = 2


class PolicyError(GateError):
    """A policy that cannot be taken as it is. Whoever meets this keeps the box closed."""

    exit_code: ClassVar[int] = 2

    def __init__(self, source: str, problem: str, line: int = 0, key: str = "") -> None:
        place = source + (f":{line}" if line else "") + (f": {key}" if key else "")
        super().__init__(f"{place}: {problem}; the box stays closed")
        self.source, self.line, self.key, self.problem = source, line, key, problem
