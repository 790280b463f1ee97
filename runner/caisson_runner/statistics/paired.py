"""Two suites on the same tasks: which is better, and how small a difference could have been seen at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, exp, lgamma, log, sqrt
from typing import Final

from caisson_runner.statistics.outcomes import Outcome, solved, units
from caisson_runner.statistics.student import quantile

ALPHA: Final = 0.05
POWER: Final = 0.8
_STEP: Final = 1000
"""Differences are told to a thousandth, rounded up."""


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test: pairs on which both agree say nothing, the others are tosses of a coin.

    Twice the binomial tail at 1/2, at most 1; in whole numbers. McNemar, Psychometrika 12 (1947); the exact form is
    that of R's exact2x2 and of statsmodels.
    """
    if only_a < 0 or only_b < 0:
        raise ValueError("pairs cannot be fewer than none")
    pairs = only_a + only_b
    tail = sum(comb(pairs, count) for count in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / (1 << pairs))


@lru_cache(maxsize=4096)
def _needed(losses: int, alpha: float) -> int:
    """The fewest wins that make McNemar's test significant against so many losses."""
    low, high = losses, 2 * losses + 8
    while mcnemar(high, losses) > alpha:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if mcnemar(middle, losses) > alpha:
            low = middle
        else:
            high = middle
    return high


def _binomial(total: int, chance: float) -> list[float]:
    if chance <= 0:
        return [1.0] + [0.0] * total
    if chance >= 1:
        return [0.0] * total + [1.0]
    whole = lgamma(total + 1)
    return [
        exp(whole - lgamma(at + 1) - lgamma(total - at + 1) + at * log(chance) + (total - at) * log(1 - chance))
        for at in range(total + 1)
    ]


def power(pairs: int, better: float, worse: float, alpha: float = ALPHA) -> float:
    """Chance that McNemar's exact test says "better", when a pair is won with chance ``better``, lost with ``worse``.

    The sum over all ways that so many pairs can fall, not an approximation. Grows with ``better``.
    """
    if better < 0 or worse < 0 or better + worse > 1 + 1e-12:
        raise ValueError(f"{better} and {worse} are no chances of winning and losing a pair")
    total = 0.0
    for losses, chance in enumerate(_binomial(pairs, worse)):
        rest = pairs - losses
        if chance < 1e-13 or losses + 1 > rest:
            continue
        wins = _needed(losses, alpha)
        if wins <= rest:
            win = min(1.0, better / (1 - worse)) if worse < 1 else 0.0
            total += chance * sum(_binomial(rest, win)[wins:])
    return min(1.0, total)


def smallest_difference(pairs: int, worse: float = 0.0, alpha: float = ALPHA, wanted: float = POWER) -> float | None:
    """The smallest difference (share of pairs won less share lost) that would be seen with chance ``wanted``.

    ``worse`` is the share of pairs that the better side loses all the same; 0 is the best case. To a thousandth,
    rounded up. None when no difference could: with fewer than six pairs none is ever significant.
    """
    low, high = 0, int((1 - 2 * worse) * _STEP + 1e-9)
    if high <= 0 or power(pairs, worse + high / _STEP, worse, alpha) < wanted:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if power(pairs, worse + middle / _STEP, worse, alpha) < wanted:
            low = middle
        else:
            high = middle
    return high / _STEP


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B over the tasks that both tried.

    ``pairs``: tasks; ``only_a``: on so many A was better; ``difference``: A's mean share solved less B's, with its
    95 % interval, None where it is not identified; ``best_case``, ``as_seen``: the smallest differences that could have
    been shown if the better side lost no pair, and if it lost as many as the worse one won here.
    """

    pairs: int
    only_a: int
    only_b: int
    attempts: tuple[int, int]
    rate_a: float
    rate_b: float
    difference: float
    interval: tuple[float, float] | None
    p: float
    lost: float
    best_case: float | None
    as_seen: float | None
    unpaired: int
    tied_by: str


def compare(a: Sequence[Outcome], b: Sequence[Outcome]) -> Comparison | None:
    """Pairs by task, and by agent too where both sides have the same several agents. None when there are no pairs.

    Where a task was tried more than once, as many of each side's attempts count as the other has, the first ones, and
    the task is won by the side that solved more of them: with one attempt each that is McNemar's test as it is, with
    more it stays exact, because with equal numbers of equally good attempts either side is ahead with equal chance.
    """
    agents = {one.agent for one in a}, {one.agent for one in b}
    exact = agents[0] == agents[1] and len(agents[0]) > 1
    of_a, of_b = _pairable(a, exact), _pairable(b, exact)
    both = [key for key in of_a if key in of_b]
    if not both:
        return None
    wins = losses = count = 0
    shares: list[tuple[float, float]] = []
    for key in both:
        tries = min(len(of_a[key]), len(of_b[key]))
        count += tries
        one, other = solved(of_a[key][:tries]), solved(of_b[key][:tries])
        wins, losses = wins + (one > other), losses + (one < other)
        shares.append((one / tries, other / tries))
    pairs = len(both)
    rate_a, rate_b = sum(one for one, _ in shares) / pairs, sum(other for _, other in shares) / pairs
    lost = min(wins, losses) / pairs
    return Comparison(
        pairs=pairs,
        only_a=wins,
        only_b=losses,
        attempts=(count, count),
        rate_a=rate_a,
        rate_b=rate_b,
        difference=rate_a - rate_b,
        interval=_difference_interval([one - other for one, other in shares]),
        p=mcnemar(wins, losses),
        lost=lost,
        best_case=smallest_difference(pairs),
        as_seen=smallest_difference(pairs, ceil(lost * _STEP) / _STEP) if lost else smallest_difference(pairs),
        unpaired=len(of_a) + len(of_b) - 2 * pairs,
        tied_by="task and agent" if exact else "task",
    )


def _pairable(attempts: Sequence[Outcome], exact: bool) -> dict[tuple[str, str], list[Outcome]]:
    if exact:
        return units(attempts)
    found: dict[tuple[str, str], list[Outcome]] = {}
    for one in attempts:
        found.setdefault((one.task, ""), []).append(one)
    return found


def _difference_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Student's t over the tasks' differences; None when they do not vary, for then they do not say how much."""
    groups = len(differences)
    if groups < 2:
        return None
    mean = sum(differences) / groups
    variance = sum((one - mean) ** 2 for one in differences) / (groups - 1)
    if variance == 0:
        return None
    half = quantile(groups - 1) * sqrt(variance / groups)
    return max(-1.0, mean - half), min(1.0, mean + half)
