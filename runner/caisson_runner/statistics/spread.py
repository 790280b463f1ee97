"""Why the same thing done again gives another answer: the agent did something else, or the harness graded otherwise.

Attempts of one agent at one task differ in their outcome by the variance Var(y). With s for the final state that an
attempt left, Var(y) = E[Var(y | s)] + Var(E[y | s]): the first part is what grading the very same state again would
give (the harness: drawn inputs, flaky checks), the second what comes of the states being different (the agent).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caisson_runner.statistics.outcomes import Outcome, units


@dataclass(frozen=True, slots=True)
class Spread:
    """Variances of one attempt's outcome (0 or 1), at most 1/4 each.

    ``total`` is None where no agent tried a task twice, ``harness`` where no state was graded twice; ``agent`` needs
    both. ``covered`` is the share of attempts whose state was graded more than once: ``harness`` is about these.
    ``graded_twice`` states had ``gradings`` gradings between them; those of ``disagreeing`` were not all the same.
    """

    units: int
    attempts: int
    states: int
    total: float | None
    harness: float | None
    agent: float | None
    covered: float
    graded_twice: int
    gradings: int
    disagreeing: int

    @property
    def bounds(self) -> tuple[float, float] | None:
        """What the harness's part lies between: a number where it is known of all attempts, else up to the total."""
        if self.total is None:
            return None
        if self.harness is None:
            return 0.0, self.total
        known = self.covered * self.harness
        return min(known, self.total), min(self.total, known + (1 - self.covered) * 0.25)


def _sum_of_squares(values: Sequence[bool]) -> float:
    count, hits = len(values), sum(values)
    return hits * (count - hits) / count


def spread(attempts: Iterable[Outcome]) -> Spread:
    """The parts, each estimated without bias from what there is.

    Total: the pooled variance within agent and task, of each attempt's own grading. Harness: the variance within a
    state's gradings (attempts that left the same state, and regrades of it), weighted by the attempts that left it.
    Agent: the rest; below 0 by chance when it is small, and then said to be 0.
    """
    by_unit = units(attempts)
    squares = free = 0.0
    gradings: dict[tuple[str, str], list[bool]] = {}
    left: dict[tuple[str, str], int] = {}
    for (task, _agent), tries in by_unit.items():
        if len(tries) > 1:
            squares += _sum_of_squares([one.true for one in tries])
            free += len(tries) - 1
        for one in tries:
            key = (task, one.state or f"run {one.run}")
            gradings.setdefault(key, []).extend([one.true, *one.regraded])
            left[key] = left.get(key, 0) + 1
    twice = {key: answers for key, answers in gradings.items() if len(answers) > 1}
    total = squares / free if free else None
    weight = sum(left[key] for key in twice)
    harness = (
        sum(left[key] * _sum_of_squares(answers) / (len(answers) - 1) for key, answers in twice.items()) / weight
        if twice
        else None
    )
    count = sum(left.values())
    return Spread(
        units=len(by_unit),
        attempts=count,
        states=len(gradings),
        total=total,
        harness=harness,
        agent=None if total is None or harness is None else max(0.0, total - harness),
        covered=weight / count if count else 0.0,
        graded_twice=len(twice),
        gradings=sum(map(len, twice.values())),
        disagreeing=sum(len(set(answers)) > 1 for answers in twice.values()),
    )
