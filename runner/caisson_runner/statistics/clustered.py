"""Intervals of rates whose runs are not independent: attempts at one task succeed and fail together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from caisson_runner.statistics.student import quantile
from caisson_runner.verify.intervals import score

Cluster = tuple[int, int]
"""Of one task: how many of its runs count, and how many there are."""

SEED: Final = 20_260_101
RESAMPLES: Final = 4000


@dataclass(frozen=True, slots=True)
class Clustered:
    """A rate's 95 % interval, as wide as its clusters make it.

    ``design_effect``: by how much its variance is larger than that of as many independent runs; ``worth``: how many
    independent runs it is worth.
    """

    share: float
    low: float
    high: float
    design_effect: float
    worth: float
    clusters: int


def clustered(clusters: Sequence[Cluster]) -> Clustered | None:
    """The score interval with the cluster-robust variance, and Student's t for the number of clusters.

    The variance is that of a ratio of sums over clusters (Liang and Zeger 1986, with the factor G/(G-1)); the runs are
    worth as many independent ones as would have that variance, and Wilson's interval is taken of those (the modified
    Wilson limits of survey statistics; Korn and Graubard, Survey Methodology 24, 1998). They are never taken to be
    worth more than there are; where all clusters agree on 0 or 1 there is no variance to be had, and each cluster is
    taken to be worth one run. None with fewer than two clusters: how much clusters differ cannot be seen in one.
    """
    there = [(count, total) for count, total in clusters if total]
    if len(there) < 2:
        return None
    count, total = sum(one for one, _ in there), sum(one for _, one in there)
    share, groups = count / total, len(there)
    variance = groups / (groups - 1) * sum((own - share * size) ** 2 for own, size in there) / total**2
    if 0 < count < total:
        worth = total if variance == 0 else min(float(total), share * (1 - share) / variance)
    else:
        worth = groups
    low, high = score(share, worth, quantile(groups - 1))
    low, high = (0.0 if count == 0 else low), (1.0 if count == total else high)
    return Clustered(share, low, high, total / worth, worth, groups)


def mean_interval(values: Sequence[float], most: float) -> tuple[float, float] | None:
    """The same for the mean of one value within [0, 1] a cluster; ``most`` is how many runs are behind all of them."""
    groups = len(values)
    if groups < 2:
        return None
    mean = min(1.0, max(0.0, sum(values) / groups))
    variance = sum((value - mean) ** 2 for value in values) / (groups - 1) / groups
    worth = float(groups)
    if 0 < mean < 1:
        worth = most if variance == 0 else min(most, mean * (1 - mean) / variance)
    low, high = score(mean, worth, quantile(groups - 1))
    return min(low, mean), max(high, mean)


def bootstrap(clusters: Sequence[Cluster], seed: int = SEED, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """95 % percentile interval from whole clusters drawn with replacement; the same numbers for the same seed.

    Asks nothing of how runs of a task hang together, but is too narrow for few tasks (fewer than about 20), and of no
    width when all agree. None with fewer than two clusters.
    """
    there = [(count, total) for count, total in clusters if total]
    if len(there) < 2:
        return None
    draw = random.Random(seed)  # noqa: S311 - not a secret, must be the same again
    shares = []
    for _ in range(resamples):
        drawn = draw.choices(there, k=len(there))
        shares.append(sum(count for count, _ in drawn) / sum(total for _, total in drawn))
    shares.sort()
    cut = int(0.025 * resamples)
    return shares[cut], shares[resamples - 1 - cut]
