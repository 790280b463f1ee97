"""What became of one route, and whether that is as it must be. Pure; crosses process borders as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from caisson_runner.redteam.register import Route

BLOCKED: Final = "blocked"
REACHED: Final = "reached"
INAPPLICABLE: Final = "inapplicable"
NOT_PERFORMED: Final = "not-performed"
INSIDE: Final = frozenset({"seccomp", "caps", "mount", "pidns", "userns", "ipcns", "kernel", "inert"})
"""What stops a try within the process itself: nothing was sent that a gate could have seen."""
VERDICTS: Final = (BLOCKED, REACHED, INAPPLICABLE, NOT_PERFORMED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case of one route, under one engine, with one network."""

    route: str
    id: str
    group: str
    engine: str
    network: str
    witness: str
    verdict: str
    reached: tuple[str, ...] = ()
    """Where a canary heard it, or what the box got that it must not have."""
    blocked_by: tuple[str, ...] = ()
    recorded_by: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """Where the record is: file and place in it."""
    reason: str = ""
    """Why it is inapplicable or was not performed."""
    complaints: tuple[str, ...] = ()
    """What is not as it must be; empty when all is well."""
    note: str = ""
    """A declared exception that applied."""
    wall_s: float = 0.0

    @property
    def good(self) -> bool:
        return not self.complaints

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "good": self.good}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Outcome:
        """TypeError or KeyError for anything else."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
        }
        values.pop("good", None)
        return cls(**values)


def complain(
    route: Route, engine: str, network: str, witness: str, verdict: str, reached: Sequence[str],
    blocked_by: Sequence[str], recorded_by: Sequence[str], wrongly: Sequence[str] = (),
) -> tuple[list[str], str]:  # fmt: skip
    """What is wrong with an outcome, and the declared exception that was used, if any.

    ``wrongly`` is what was reached and may not be even where the route is to pass.
    """
    said: list[str] = []
    note = ""
    wanted = route.blocked[network]
    passes = "passes" in wanted
    if verdict == INAPPLICABLE:
        return (["a control cannot be inapplicable"] if route.control else []), ""
    if verdict == NOT_PERFORMED:
        return ([] if route.documented else ["it was not performed, so nothing is known"]), route.documented
    if verdict == REACHED and not passes:
        if engine in route.open:
            return [], f"known to be open: {route.open[engine]}"
        said.append(f"it reached: {'; '.join(reached)[:300]}")
    if passes and wrongly:
        said.append(f"it passes, but also: {'; '.join(wrongly)[:300]}")
    if verdict == BLOCKED and passes and not wanted & set(blocked_by):
        said.append("it must pass, and did not")
    if verdict == BLOCKED and not passes and not wanted & set(blocked_by):
        said.append(f"stopped by {', '.join(blocked_by) or 'nothing known'}, expected {' or '.join(sorted(wanted))}")
    if not recorded_by:
        if witness in route.silent and (network == "none" or set(blocked_by) <= INSIDE):
            note = f"unrecorded: {route.silent[witness]}"
        else:
            said.append("nothing recorded it")
    return said, note
