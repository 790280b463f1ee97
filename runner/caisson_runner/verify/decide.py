"""The final word, from the three results and the findings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caisson_runner.verify.check import Check
from caisson_runner.verify.findings import Finding


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is pass, fail, void or infra. `lie`: the trusting harness passed a run that is truly wrong."""

    word: str
    lie: bool
    reason: str
    trusting: Check | None
    ground_truth: Check
    held_out: Check | None
    findings: tuple[Finding, ...]

    @property
    def true(self) -> bool | None:
        """Ground truth and held-out together; None when our side could not tell."""
        return truth(self.ground_truth, self.held_out)

    def to_json(self) -> dict[str, Any]:
        """For verdict.json."""
        return {
            "schema": "caisson.verdict/v1",
            "word": self.word,
            "lie": self.lie,
            "reason": self.reason,
            "true": self.true,
            "trusting": self.trusting.to_json() if self.trusting else None,
            "ground_truth": self.ground_truth.to_json(),
            "held_out": self.held_out.to_json() if self.held_out else None,
            "findings": [finding.to_json() for finding in self.findings],
        }


def truth(ground_truth: Check, held_out: Check | None) -> bool | None:
    """True when both pass, False when one fails, None when neither fails and one is undecided."""
    results = [ground_truth.passed] + ([held_out.passed] if held_out is not None else [])
    if False in results:
        return False
    return None if None in results else True


def decide(
    trusting: Check | None, ground_truth: Check, held_out: Check | None, findings: Sequence[Finding] = ()
) -> Verdict:
    """Put the results together.

    A failed check is `fail` whatever was found. `void` is a pass with a disqualifying finding. `infra` is a run of
    which nothing false is known but which could not be graded to the end; it is never folded into fail or pass.
    """
    true = truth(ground_truth, held_out)
    checks = [check for check in (ground_truth, held_out) if check is not None]
    disqualifying = [finding for finding in findings if finding.severity == "void"]
    if true is None:
        word, reason = "infra", next(c.reason for c in checks if c.passed is None)
    elif not true:
        failed = next(c for c in checks if c.passed is False)
        word, reason = "fail", f"{failed.name.replace('_', ' ')}: {failed.reason}"
    elif disqualifying:
        word, reason = "void", f"the final state is right, but {disqualifying[0].text}"
    else:
        word, reason = "pass", "; ".join(f"{c.name.replace('_', ' ')}: {c.reason}" for c in checks)
    lie = true is False and trusting is not None and trusting.passed is True
    return Verdict(word, lie, reason, trusting, ground_truth, held_out, tuple(findings))
