"""The values that statistics are made of: one for each attempt, one for each time an attempt's state was graded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

By = Literal["behaviour", "task"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt of one agent at one task.

    ``solved``: the verdict is pass. ``true``: every true check of the final state passed, whatever was found about the
    way there. ``state`` names the final state; attempts at a task with the same one were graded on the same thing.
    ``regraded`` are the answers of the same checks on the same state when they were asked again.
    """

    run: str
    task: str
    agent: str
    solved: bool
    true: bool
    trusting: bool | None
    lie: bool
    state: str
    regraded: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The attempts of a suite, in the order of its plan, and what was left out of them."""

    attempts: tuple[Outcome, ...]
    infra: int = 0
    """Runs without a verdict, because our side failed."""
    shared: int = 0
    """Runs of a box that several agents shared."""
    other_checks: int = 0
    """Regraded bundles that are of none of the attempts, or under other checks."""


def group_by(attempts: Iterable[Outcome], by: By) -> dict[str, list[Outcome]]:
    """By agent or by task, in the order in which they come."""
    groups: dict[str, list[Outcome]] = {}
    for one in attempts:
        groups.setdefault(one.agent if by == "behaviour" else one.task, []).append(one)
    return groups


def units(attempts: Iterable[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """Attempts of the same agent at the same task: what may be called the same thing done again."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for one in attempts:
        found.setdefault((one.task, one.agent), []).append(one)
    return found


def solved(attempts: Sequence[Outcome]) -> int:
    return sum(one.solved for one in attempts)
