"""pass@k and pass^k: solved at least once, and solved every time, in k attempts drawn from the n that were made."""

from __future__ import annotations

from math import comb

from caisson_runner.verify.intervals import wilson


def _check(attempts: int, solved: int, k: int) -> None:
    if not 0 <= solved <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"{k} of {attempts} attempts, {solved} of them solved, cannot be drawn")


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Chance that at least one of k of these attempts solved the task: unbiased for 1 - (1 - p)^k.

    One minus the share of the ways to draw k that hold no solved one. Chen et al., arXiv 2107.03374 (2021), eq. 1;
    in whole numbers here, so it is exact for any n. Raises ValueError when fewer than k were made.
    """
    _check(attempts, solved, k)
    every = comb(attempts, k)
    return (every - comb(attempts - solved, k)) / every


def pass_hat_k(attempts: int, solved: int, k: int) -> float:
    """Chance that all k of these attempts solved the task: unbiased for p^k.

    The share of the ways to draw k that hold only solved ones. Yao et al., arXiv 2406.12045 (2024).
    """
    _check(attempts, solved, k)
    return comb(solved, k) / comb(attempts, k)


def pass_at_k_interval(attempts: int, solved: int, k: int) -> tuple[float, float]:
    """95 % interval of one task's pass@k: Wilson's for one attempt's rate, carried over, and the estimate in it."""
    low, high = wilson(solved, attempts)
    estimate = pass_at_k(attempts, solved, k)
    return min(estimate, 1 - (1 - low) ** k), max(estimate, 1 - (1 - high) ** k)


def pass_hat_k_interval(attempts: int, solved: int, k: int) -> tuple[float, float]:
    """The same of pass^k."""
    low, high = wilson(solved, attempts)
    estimate = pass_hat_k(attempts, solved, k)
    return min(estimate, low**k), max(estimate, high**k)
