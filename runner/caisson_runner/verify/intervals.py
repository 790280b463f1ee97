"""Intervals for rates. Small suites give wide ones; a rate is never printed without it."""

from __future__ import annotations

from math import sqrt

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


def wilson(successes: int, total: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a binomial share, as fractions (low, high) within [0, 1].

    E. B. Wilson, J. Am. Stat. Assoc. 22 (1927). No continuity correction. The ends are exact at 0 and `total`
    successes. Raises ValueError when there is nothing to take a share of.
    """
    if total <= 0 or not 0 <= successes <= total:
        raise ValueError(f"{successes} of {total} is no share")
    low, high = score(successes / total, total, z)
    return 0.0 if successes == 0 else low, 1.0 if successes == total else high


def score(share: float, total: float, z: float = Z95) -> tuple[float, float]:
    """The same of a share of as many runs as it is worth: ``total`` need not be whole, nor need ``share`` times it."""
    denominator = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / denominator
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)
