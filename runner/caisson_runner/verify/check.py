"""The values a verification is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caisson_runner.verify.canon import Value

MAX_REASON = 400  # characters


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the subject, and what must come of it. `raises` is the name of an exception class."""

    function: str
    args: tuple[Value, ...]
    kwargs: Mapping[str, Value]
    expect: Value = None
    raises: str | None = None
    checked: bool = False  # the examiner's check() decides, not equality
    index: int = -1  # the case's number inside the examiner, for check()

    def text(self) -> str:
        """How the call would be written, cut to a line."""
        parts = [repr(arg) for arg in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        line = f"{self.function}({', '.join(parts)})"
        return line if len(line) <= 200 else line[:199] + "…"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case's outcome. `reason` is empty when it passed."""

    call: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One of the three results. `passed` is None when our side failed, so that nothing was decided."""

    name: str  # trusting, ground_truth, held_out
    passed: bool | None
    reason: str
    how: str = ""  # examiner, scripts, harbor, command, claim
    cases: tuple[CaseResult, ...] = ()
    seed: int | None = None
    wall_s: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For verdict.json. What came from a box is in it as cut, escaped text only."""
        return {
            "name": self.name,
            "passed": self.passed,
            "reason": self.reason,
            "how": self.how,
            "cases": [{"call": c.call, "passed": c.passed, "reason": c.reason} for c in self.cases],
            "seed": self.seed,
            "wall_s": round(self.wall_s, 4),
            "evidence": dict(self.evidence),
        }


def shown(data: bytes, limit: int = MAX_REASON) -> str:
    """Bytes from a box as one printable line: nothing in it can move a cursor or forge a line."""
    text = data[: limit * 2].decode("utf-8", "backslashreplace")
    safe = "".join(
        char if char.isprintable() else f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
        for char in text
    )
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
