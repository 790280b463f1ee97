"""All numbers of one suite, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caisson_runner.statistics.attempts import pass_at_k, pass_at_k_interval, pass_hat_k, pass_hat_k_interval
from caisson_runner.statistics.clustered import Clustered, bootstrap, clustered, mean_interval
from caisson_runner.statistics.outcomes import By, Outcome, Outcomes, group_by, units
from caisson_runner.statistics.paired import smallest_difference
from caisson_runner.statistics.spread import Spread, spread
from caisson_runner.verify.intervals import wilson

KS = (1, 2, 3, 4, 5, 8, 10, 16, 25, 32, 50, 64, 100)
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many runs, with its intervals: as if runs were independent, and as the tasks make it."""

    count: int
    total: int
    wilson: Interval | None
    clustered: Clustered | None
    bootstrap: Interval | None


@dataclass(frozen=True, slots=True)
class Attempts:
    """pass@k and pass^k, the mean over the ``units`` (agent and task) that have at least k attempts."""

    k: int
    units: int
    at_k: float
    at_k_interval: Interval | None
    hat_k: float
    hat_k_interval: Interval | None


@dataclass(frozen=True, slots=True)
class Group:
    """One agent, one task, or all."""

    name: str
    tasks: int
    solved: Rate
    true: Rate
    lies: Rate
    attempts: tuple[Attempts, ...]
    spread: Spread


@dataclass(frozen=True, slots=True)
class Summary:
    """A suite. ``best_case`` is the smallest difference that a paired comparison on its tasks could show."""

    by: By
    groups: tuple[Group, ...]
    whole: Group
    pairs: int
    best_case: float | None


def summarize(outcomes: Outcomes, by: By = "behaviour") -> Summary:
    """All numbers of a suite."""
    groups = tuple(_group(name, members) for name, members in group_by(outcomes.attempts, by).items())
    pairs = len({one.task for one in outcomes.attempts})
    return Summary(by, groups, _group("all", outcomes.attempts), pairs, smallest_difference(pairs))


def _group(name: str, attempts: Sequence[Outcome]) -> Group:
    return Group(
        name,
        len({one.task for one in attempts}),
        _rate([(one.task, one.solved) for one in attempts]),
        _rate([(one.task, one.true) for one in attempts]),
        _rate([(one.task, one.lie) for one in attempts]),
        tuple(_attempts(attempts)),
        spread(attempts),
    )


def _rate(hits: Sequence[tuple[str, bool]]) -> Rate:
    tasks: dict[str, tuple[int, int]] = {}
    for task, hit in hits:
        count, total = tasks.get(task, (0, 0))
        tasks[task] = (count + hit, total + 1)
    count, total = sum(hit for _, hit in hits), len(hits)
    clusters = list(tasks.values())
    return Rate(count, total, wilson(count, total) if total else None, clustered(clusters), bootstrap(clusters))


def _attempts(attempts: Sequence[Outcome]) -> Iterable[Attempts]:
    counts = [(len(tries), sum(one.solved for one in tries)) for tries in units(attempts).values()]
    several = len({one.agent for one in attempts}) > 1  # a mix of agents is no sample of agents: no interval
    most = max((total for total, _ in counts), default=0)
    for k in (k for k in KS if k <= most):
        able = [(total, count) for total, count in counts if total >= k]
        at = [pass_at_k(total, count, k) for total, count in able]
        hat = [pass_hat_k(total, count, k) for total, count in able]
        behind = float(sum(total for total, _ in able))
        at_interval: Interval | None = None
        hat_interval: Interval | None = None
        if len(able) == 1:
            at_interval, hat_interval = pass_at_k_interval(*able[0], k), pass_hat_k_interval(*able[0], k)
        elif not several:
            at_interval, hat_interval = mean_interval(at, behind), mean_interval(hat, behind)
        yield Attempts(k, len(able), sum(at) / len(at), at_interval, sum(hat) / len(hat), hat_interval)
