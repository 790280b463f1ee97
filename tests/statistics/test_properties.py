"""What holds for every suite, whatever its numbers."""

from __future__ import annotations

import random
from itertools import product

import pytest
from caisson_runner.statistics import (
    Outcome,
    Outcomes,
    bootstrap,
    clustered,
    compare,
    mcnemar,
    pass_at_k,
    pass_hat_k,
    power,
    smallest_difference,
    spread,
    summarize,
)
from caisson_runner.statistics.attempts import pass_at_k_interval, pass_hat_k_interval
from caisson_runner.statistics.clustered import mean_interval
from caisson_runner.verify.intervals import wilson
from hypothesis import given, settings
from hypothesis import strategies as st

patient = settings(deadline=None, max_examples=60)  # a busy machine takes its time
counts = st.integers(1, 40).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))
suites = st.lists(counts, min_size=2, max_size=12)


def outcome(task: str, true: bool, agent: str = "a", state: str = "", run: str = "", **fields: object) -> Outcome:
    return Outcome(run, task, agent, true, true, True, not true, state, **fields)  # type: ignore[arg-type]


@patient
@given(counts, st.data())
def test_more_attempts_solve_more_often_and_all_of_them_less_often(
    counted: tuple[int, int], data: st.DataObject
) -> None:
    count, total = counted
    k = data.draw(st.integers(1, total))
    assert 0 <= pass_hat_k(total, count, k) <= count / total + 1e-12
    assert count / total - 1e-12 <= pass_at_k(total, count, k) <= 1
    assert pass_at_k(total, count, 1) == pass_hat_k(total, count, 1) == count / total
    assert pass_at_k(total, count, k) == pytest.approx(1 - pass_hat_k(total, total - count, k))
    if k < total:
        assert pass_at_k(total, count, k) <= pass_at_k(total, count, k + 1) + 1e-12
        assert pass_hat_k(total, count, k) >= pass_hat_k(total, count, k + 1) - 1e-12
    for low, high, estimate in (
        (*pass_at_k_interval(total, count, k), pass_at_k(total, count, k)),
        (*pass_hat_k_interval(total, count, k), pass_hat_k(total, count, k)),
    ):
        assert 0 <= low <= estimate <= high <= 1


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_pass_at_k_and_pass_hat_k_are_unbiased(chance: float) -> None:
    for attempts, k in ((3, 2), (5, 3), (6, 6)):
        at = hat = 0.0
        for results in product((False, True), repeat=attempts):
            count = sum(results)
            weight = chance**count * (1 - chance) ** (attempts - count)
            at += weight * pass_at_k(attempts, count, k)
            hat += weight * pass_hat_k(attempts, count, k)
        assert at == pytest.approx(1 - (1 - chance) ** k)
        assert hat == pytest.approx(chance**k)


def test_what_was_not_tried_is_not_told() -> None:
    for attempts, count, k in ((3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)):
        for estimate in (pass_at_k, pass_hat_k):
            with pytest.raises(ValueError):
                estimate(attempts, count, k)


@patient
@given(suites)
def test_a_clustered_interval_holds_the_rate_and_is_worth_no_more_runs_than_there_are(
    clusters: list[tuple[int, int]],
) -> None:
    found = clustered(clusters)
    assert found is not None
    total = sum(one for _, one in clusters)
    assert 0 <= found.low <= found.share + 1e-12 and found.share - 1e-12 <= found.high <= 1
    assert found.design_effect >= 1 - 1e-12 and 0 < found.worth <= total + 1e-9
    mirrored = clustered([(one - count, one) for count, one in clusters])
    assert mirrored is not None
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)
    assert clustered(list(reversed(clusters))) is not None


def test_tasks_that_hang_together_make_an_interval_wider() -> None:
    apart = clustered([(5, 10)] * 10)
    together = clustered([(10, 10), (0, 10)] * 5)
    assert apart is not None and together is not None
    assert apart.share == together.share
    assert apart.design_effect == 1 and together.design_effect == pytest.approx(100 / 9)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_interval_by_task_holds_the_truth_as_often_as_it_says_where_wilsons_does_not() -> None:
    """Tasks with rates of their own around 2/3 (Beta(1/2, 1/4)), five runs each; the same draws every time."""
    draw = random.Random(1)
    for tasks in (3, 5, 10):
        by_task = alone = 0
        for _ in range(300):
            chances = [draw.betavariate(0.5, 0.25) for _ in range(tasks)]
            clusters = [(sum(draw.random() < chance for _ in range(5)), 5) for chance in chances]
            found = clustered(clusters)
            assert found is not None
            low, high = wilson(sum(count for count, _ in clusters), 5 * tasks)
            by_task += found.low <= 2 / 3 <= found.high
            alone += low <= 2 / 3 <= high
        assert by_task / 300 >= 0.93 and alone / 300 < 0.8, tasks


def test_one_task_says_nothing_of_how_tasks_differ() -> None:
    assert clustered([(3, 5)]) is bootstrap([(3, 5)]) is mean_interval([0.6], 5) is None
    assert clustered([(3, 5), (0, 0)]) is None


@patient
@given(st.lists(counts, min_size=2, max_size=5), st.integers(0, 3))
def test_the_bootstrap_gives_the_same_for_the_same_seed(clusters: list[tuple[int, int]], seed: int) -> None:
    found = bootstrap(clusters, seed, 200)
    assert found is not None and found == bootstrap(clusters, seed, 200)
    assert min(c / t for c, t in clusters) - 1e-12 <= found[0] <= found[1] <= max(c / t for c, t in clusters) + 1e-12


@patient
@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.integers(1, 9))
def test_a_means_interval_holds_it(values: list[float], each: int) -> None:
    found = mean_interval(values, each * len(values))
    assert found is not None
    assert 0 <= found[0] <= sum(values) / len(values) + 1e-12
    assert sum(values) / len(values) - 1e-12 <= found[1] <= 1


@patient
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_probability_and_falls_with_every_win_more(wins: int, losses: int) -> None:
    assert 0 < mcnemar(wins, losses) <= 1
    if wins > losses:
        assert mcnemar(wins + 1, losses) <= mcnemar(wins, losses)


@patient
@given(st.integers(1, 25), st.floats(0, 0.3))
def test_mcnemar_is_wrong_no_more_often_than_it_says(pairs: int, changes: float) -> None:
    assert 2 * power(pairs, changes, changes) <= 0.05 + 1e-9


@patient
@given(st.integers(1, 40), st.floats(0, 0.3), st.floats(0, 0.6), st.floats(0, 0.1))
def test_power_grows_with_the_difference(pairs: int, worse: float, better: float, more: float) -> None:
    assert 0 <= power(pairs, better, worse) <= power(pairs, better + more, worse) + 1e-9 <= 1 + 1e-9


@patient
@given(st.integers(1, 60), st.sampled_from([0.0, 0.05, 0.1, 0.2]))
def test_the_smallest_difference_is_seen_and_a_smaller_one_is_not(pairs: int, worse: float) -> None:
    found = smallest_difference(pairs, worse)
    if found is not None:
        assert power(pairs, worse + found, worse) >= 0.8
        assert power(pairs, worse + found - 0.001, worse) < 0.8
    else:
        assert power(pairs, 1 - worse, worse) < 0.8


results = st.lists(st.tuples(st.sampled_from("tuvwxyz"), st.booleans()), min_size=1, max_size=30)


@patient
@given(results, results)
def test_b_against_a_is_a_against_b_the_other_way_round(a: list[tuple[str, bool]], b: list[tuple[str, bool]]) -> None:
    one = [outcome(task, true) for task, true in a]
    two = [outcome(task, true, "b") for task, true in b]
    there, back = compare(one, two), compare(two, one)
    if there is None or back is None:
        assert there is back and not {task for task, _ in a} & {task for task, _ in b}
        return
    assert (there.only_a, there.only_b, there.pairs) == (back.only_b, back.only_a, back.pairs)
    assert there.p == back.p and there.difference == pytest.approx(-back.difference)
    assert there.attempts[0] == there.attempts[1]
    if there.interval is not None:
        assert there.interval[0] - 1e-12 <= there.difference <= there.interval[1] + 1e-12
    same = compare(one, one)
    assert same is not None and same.p == 1 and same.difference == 0


def test_several_agents_are_paired_with_themselves_where_both_sides_have_them() -> None:
    a = [outcome(task, agent == "x", agent) for task in "tu" for agent in "xy"]
    found = compare(a, list(reversed(a)))
    assert found is not None
    assert (found.pairs, found.tied_by, found.p) == (4, "task and agent", 1)
    found = compare([one for one in a if one.agent == "x"], [one for one in a if one.agent == "y"])
    assert found is not None
    assert (found.pairs, found.tied_by, found.only_a) == (2, "task", 2)


def test_the_side_with_more_attempts_gets_no_more_chances() -> None:
    found = compare([outcome("t", False)], [outcome("t", False, "b"), outcome("t", True, "b"), outcome("t", True, "b")])
    assert found is not None
    assert (found.only_a, found.only_b, found.attempts) == (0, 0, (1, 1))


@pytest.mark.parametrize("common", [0.25, 0.5])
def test_the_parts_of_the_spread_are_unbiased(common: float) -> None:
    """Every way that two attempts, each graded twice, can end: two states, with their own chances to pass."""
    passing = {"s": 0.9, "t": 0.3}
    chance = {"s": common, "t": 1 - common}
    mean = sum(chance[state] * passing[state] for state in "st")
    within = sum(chance[state] * passing[state] * (1 - passing[state]) for state in "st")
    total = harness = agent = 0.0
    for states in product("st", repeat=2):
        for answers in product((False, True), repeat=4):
            weight = 1.0
            for at, state in enumerate(states):
                weight *= chance[state]
                for answer in answers[2 * at : 2 * at + 2]:
                    weight *= passing[state] if answer else 1 - passing[state]
            found = spread(
                outcome("t", answers[2 * at], state=state, regraded=(answers[2 * at + 1],))
                for at, state in enumerate(states)
            )
            assert found.total is not None and found.harness is not None and found.covered == 1
            total += weight * found.total
            harness += weight * found.harness
            agent += weight * (found.total - found.harness)
    assert total == pytest.approx(mean * (1 - mean))
    assert harness == pytest.approx(within)
    assert agent == pytest.approx(mean * (1 - mean) - within)


def test_states_that_never_come_again_leave_the_harness_unknown() -> None:
    found = spread([outcome("t", True, state="1", run="1"), outcome("t", False, state="2", run="2")])
    assert (found.total, found.harness, found.agent, found.bounds) == (0.5, None, None, (0.0, 0.5))
    assert spread([outcome("t", True)]).bounds is None


def test_one_state_that_is_graded_two_ways_is_the_harness_alone() -> None:
    found = spread([outcome("t", at % 2 == 0, state="same") for at in range(4)])
    assert found.total == found.harness == pytest.approx(1 / 3)
    assert (found.agent, found.disagreeing, found.graded_twice) == (0.0, 1, 1)


def test_states_that_always_get_one_answer_leave_all_to_the_agent() -> None:
    found = spread([outcome("t", at % 2 == 0, state=str(at % 2)) for at in range(4)])
    assert found.harness == 0 and found.agent == found.total == pytest.approx(1 / 3)


def test_the_same_state_of_another_task_is_another_state() -> None:
    assert spread([outcome("t", True, state="1"), outcome("u", False, state="1")]).graded_twice == 0


@patient
@given(st.lists(st.tuples(st.sampled_from("tu"), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=20))
def test_groups_add_up_to_the_whole(rows: list[tuple[str, str, bool]]) -> None:
    outcomes = Outcomes(tuple(outcome(task, true, agent) for task, agent, true in rows))
    for summary in (summarize(outcomes, "behaviour"), summarize(outcomes, "task")):
        assert sum(group.solved.total for group in summary.groups) == summary.whole.solved.total == len(rows)
        assert sum(group.solved.count for group in summary.groups) == summary.whole.solved.count
        assert summary.whole.lies.count == len(rows) - summary.whole.true.count
