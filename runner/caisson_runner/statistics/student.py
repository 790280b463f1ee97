"""Quantiles of Student's t, without a library of statistics."""

from __future__ import annotations

from functools import lru_cache
from math import atan, cos, pi, sin, sqrt


def two_sided(t: float, degrees: int) -> float:
    """Probability that Student's t lies within ±t. Abramowitz and Stegun, 26.7.3 and 26.7.4: finite sums, exact."""
    if degrees < 1:
        raise ValueError(f"Student's t has at least one degree of freedom, not {degrees}")
    angle = atan(t / sqrt(degrees))
    square = cos(angle) ** 2
    odd = degrees % 2
    if degrees == 1:
        return 2 * angle / pi
    term = cos(angle) if odd else 1.0
    total = term
    for at in range(2 + odd, degrees - 1, 2):
        term *= square * (at - 1) / at
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


@lru_cache(maxsize=256)
def quantile(degrees: int, confidence: float = 0.95) -> float:
    """The t whose ±t holds ``confidence``: 12.71 for one degree of freedom, 1.96 for many."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if two_sided(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high
