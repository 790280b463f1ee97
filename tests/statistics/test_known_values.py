"""Numbers that others published, or that scipy 1.17 and statsmodels 0.14 gave for the same input (said where)."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from caisson_runner.statistics import clustered, mcnemar, pass_at_k, pass_hat_k, power, smallest_difference
from caisson_runner.statistics.paired import _difference_interval
from caisson_runner.statistics.student import quantile, two_sided
from caisson_runner.verify.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_as_in_newcombes_table(successes: int, total: int, low: float, high: float) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    assert wilson(successes, total) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.706204736), (2, 4.302652730), (3, 3.182446305), (4, 2.776445105), (9, 2.262157163), (30, 2.042272456),
     (119, 1.980099876), (500, 1.964719837)],
)  # fmt: skip
def test_students_t_is_as_in_every_table(degrees: int, value: float) -> None:
    assert quantile(degrees) == pytest.approx(value, abs=1e-8)
    assert two_sided(value, degrees) == pytest.approx(0.95, abs=1e-9)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (9, 2, 134 / 2048),  # Fay's exact2x2: 0.06543
        (86, 150, 3.7159361395713866e-05),  # Agresti's approval of the prime minister; statsmodels
        (0, 6, 2 / 64),
        (0, 5, 2 / 32),
        (5, 5, 1.0),
        (0, 0, 1.0),
        (3, 14, 0.012725830078125),  # statsmodels
    ],
)
def test_mcnemar_is_exact(only_a: int, only_b: int, p: float) -> None:
    assert mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-12)
    assert mcnemar(only_b, only_a) == mcnemar(only_a, only_b)


def test_a_rates_cluster_robust_variance_is_statsmodels() -> None:
    """OLS on a constant with cov_type="cluster": variance 0.02092878; then Wilson's by hand with t of 5 degrees."""
    found = clustered([(3, 5), (0, 5), (5, 5), (2, 4), (1, 3), (4, 6)])
    assert found is not None
    assert found.share == 15 / 28
    assert found.worth == pytest.approx(11.884328358)
    assert found.design_effect == pytest.approx(2.356043956)
    assert (found.low, found.high) == pytest.approx((0.2245558585, 0.8213488857))


@pytest.mark.parametrize(
    ("pairs", "better", "worse", "value"),
    [(20, 0.39, 0.0, 0.8547145816), (20, 0.4, 0.05, 0.5822671754), (30, 0.3, 0.1, 0.3070683117),
     (10, 0.7, 0.0, 0.8497316674)],
)  # fmt: skip
def test_power_is_the_sum_over_all_that_can_happen(pairs: int, better: float, worse: float, value: float) -> None:
    """Against scipy's multinomial.pmf, over every way the pairs can fall that scipy's binomtest calls significant."""
    assert power(pairs, better, worse) == pytest.approx(value, abs=1e-9)


def test_power_of_the_best_case_is_the_chance_of_six_wins() -> None:
    chance = sum(comb(20, wins) * 0.367**wins * 0.633 ** (20 - wins) for wins in range(6, 21))
    assert power(20, 0.367, 0) == pytest.approx(chance)
    assert chance >= 0.8 > power(20, 0.366, 0)
    assert smallest_difference(20) == 0.367


def test_fewer_than_six_pairs_can_show_nothing() -> None:
    assert [smallest_difference(pairs) for pairs in range(6)] == [None] * 6
    assert smallest_difference(6) == 0.964  # 0.964 ** 6 is 0.8026, 0.963 ** 6 is 0.7976


def test_a_differences_interval_is_the_t_test_of_scipy() -> None:
    found = _difference_interval([1, 0, 0, 1, -1, 1, 0, 1])
    assert found == pytest.approx((-0.2470194706, 0.9970194706))
    found = _difference_interval([0.5, 0, 0, 0.25, -0.25, 0.5])
    assert found == pytest.approx((-0.1510657520, 0.4843990854))
    assert _difference_interval([1.0]) is None
    assert _difference_interval([0.0, 0.0]) is None


def test_pass_at_k_and_pass_hat_k_count_the_ways_to_draw_k() -> None:
    for attempts in range(1, 8):
        for count in range(attempts + 1):
            results = [at < count for at in range(attempts)]
            for k in range(1, attempts + 1):
                draws = list(combinations(results, k))
                assert pass_at_k(attempts, count, k) == pytest.approx(sum(map(any, draws)) / len(draws), rel=1e-12)
                assert pass_hat_k(attempts, count, k) == pytest.approx(sum(map(all, draws)) / len(draws), rel=1e-12)
    assert pass_at_k(5, 2, 3) == 0.9
    assert pass_hat_k(5, 4, 3) == 0.4
    assert pass_at_k(100_000, 1, 50_000) == 0.5
