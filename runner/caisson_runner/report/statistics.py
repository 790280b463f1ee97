"""Tables of statistics. Pure; an interval stands beside every rate, and what is not known is said to be so."""

from __future__ import annotations

from collections.abc import Iterator

from caisson_runner.report.tables import Table
from caisson_runner.statistics.outcomes import Outcomes
from caisson_runner.statistics.paired import ALPHA, POWER, Comparison
from caisson_runner.statistics.spread import Spread
from caisson_runner.statistics.summary import Group, Interval, Rate, Summary
from caisson_runner.verify.intervals import wilson

NOT_KNOWN = "–"


def _number(value: float) -> str:
    """Of a hundred; what is not quite none or all does not look like it."""
    text = f"{100 * value:.0f}"
    if text == "0" and value > 0:
        return "<1"
    return ">99" if text == "100" and value < 1 else text


def percent(value: float) -> str:
    """A share of a hundred."""
    return f"{_number(value)} %"


def interval(pair: Interval | None) -> str:
    """Both ends, or a dash where it is not known."""
    return NOT_KNOWN if pair is None else f"{_number(pair[0])}–{_number(pair[1])} %"


def _rate(rate: Rate) -> str:
    share = f" = {percent(rate.count / rate.total)}" if rate.total else ""
    return f"{rate.count}/{rate.total}{share}"


def _clustered(rate: Rate) -> str:
    found = rate.clustered
    return NOT_KNOWN if found is None else interval((found.low, found.high))


def _groups(summary: Summary) -> tuple[Group, ...]:
    return summary.groups if len(summary.groups) == 1 else (*summary.groups, summary.whole)


def rates(summary: Summary) -> Table:
    """Solved, and lied about."""
    columns = (
        summary.by, "tasks", "solved", "Wilson", "by task", "lies", "Wilson", "by task",
    )  # fmt: skip
    rows = tuple(
        (
            group.name, str(group.tasks), _rate(group.solved), interval(group.solved.wilson), _clustered(group.solved),
            _rate(group.lies), interval(group.lies.wilson), _clustered(group.lies),
        )
        for group in _groups(summary)
    )  # fmt: skip
    notes = [
        "95 % intervals. Wilson's takes runs for independent; by task allows for runs of one task being alike",
        "a lie: the trusting harness passed a run that is truly wrong, of all runs",
    ]
    if any(group.tasks < 2 for group in _groups(summary)):
        notes.append("one task: how much tasks differ cannot be seen, so the interval says nothing about other tasks")
    return Table("S1", "Solved, and lied about", columns, rows, tuple(notes))


def attempts(summary: Summary) -> Table | None:
    """pass@k and pass^k; None where nothing was tried twice."""
    rows = tuple(
        (
            group.name,
            str(one.k),
            str(one.units),
            _value(one.at_k, one.at_k_interval),
            _value(one.hat_k, one.hat_k_interval),
        )
        for group in summary.groups
        for one in group.attempts
        if len(group.attempts) > 1
    )
    if not rows:
        return None
    unit = "tasks" if summary.by == "behaviour" else "agents"
    notes = (f"the mean over the {unit} with at least k attempts; pass@k: at least one of k solved, pass^k: all of k",)
    return Table("S2", "More than one attempt", (summary.by, "k", unit, "pass@k", "pass^k"), rows, notes)


def _value(value: float, pair: Interval | None) -> str:
    return percent(value) + (f" ({interval(pair)})" if pair is not None else "")


def spread(summary: Summary) -> Table | None:
    """Run-to-run spread in its parts; None where nothing was tried or graded twice."""
    told = [g for g in _groups(summary) if g.spread.total is not None or g.spread.harness is not None]
    if not told:
        return None
    rows = tuple((group.name, *_parts(group.spread)) for group in told)
    columns = (
        summary.by,
        "attempts",
        "final states",
        "spread",
        "of it harness",
        "of it agent",
        "graded again, disagree",
    )
    notes = [
        "spread: standard deviation of an attempt's truth (0 or 1), same agent, same task; its parts: of the variance",
        "last column: states graded more than once whose gradings disagree, with Wilson's interval",
    ]
    if any("–" in harness for _, _, _, _, harness, _, _ in rows if harness != NOT_KNOWN):
        notes.append("parts told as a range: not every state was graded more than once; regrade some to narrow it")
    return Table("S3", "Run to run", columns, rows, tuple(notes))


def _parts(found: Spread) -> Iterator[str]:
    yield str(found.attempts)
    yield str(found.states)
    total = found.total
    yield NOT_KNOWN if total is None else f"{total**0.5:.2f}"
    bounds = found.bounds
    if total is None or bounds is None:
        yield from (NOT_KNOWN, NOT_KNOWN)
    elif total == 0:
        yield from ("none", "none")
    else:
        low, high = (min(1.0, part / total) for part in bounds)
        yield percent(low) if high - low < 0.005 else f"{100 * low:.0f}–{100 * high:.0f} %"
        yield percent(1 - low) if high - low < 0.005 else f"{100 * (1 - high):.0f}–{100 * (1 - low):.0f} %"
    if found.graded_twice:
        pair = wilson(found.disagreeing, found.graded_twice)
        yield f"{found.disagreeing}/{found.graded_twice} ({interval(pair)})"
    else:
        yield NOT_KNOWN


def comparison(names: tuple[str, str], found: Comparison) -> Table:
    """A against B."""
    even = found.pairs - found.only_a - found.only_b
    rows: tuple[tuple[str, str], ...] = (
        ("A", names[0]),
        ("B", names[1]),
        ("pairs", f"{found.pairs} by {found.tied_by}, {found.attempts[0]} attempts each"),
        ("A solved", percent(found.rate_a)),
        ("B solved", percent(found.rate_b)),
        ("A less B", _points(found.difference, found.interval)),
        ("A better / B better / even", f"{found.only_a} / {found.only_b} / {even}"),
        ("exact McNemar", f"p = {found.p:.3g}: " + ("a difference" if found.p <= ALPHA else "no difference shown")),
        ("could have shown", _smallest(found.best_case) + ", at best: if the better side lost no pair"),
    )  # fmt: skip
    if found.lost:
        more = f"{_smallest(found.as_seen)}, if it lost {percent(found.lost)} of the pairs, as here"
        rows = (*rows, ("", more))
    notes = [
        f"could have shown: the smallest difference it sees with chance {percent(POWER)} at the {percent(ALPHA)} level"
    ]
    if found.unpaired:
        notes.append(f"{found.unpaired} tasks are in one of the two only, and say nothing here")
    return Table("S4", "A against B", ("quantity", "value"), rows, tuple(notes))


def _points(value: float, pair: Interval | None) -> str:
    if pair is None:
        return f"{100 * value:+.0f} points"
    return f"{100 * value:+.0f} points, 95 % interval {100 * pair[0]:+.0f} to {100 * pair[1]:+.0f}"


def _smallest(value: float | None) -> str:
    return "no difference" if value is None else f"{100 * value:.1f} points"


def left_out(outcomes: Outcomes) -> list[str]:
    """What does not count, and why."""
    told = []
    if outcomes.infra:
        told.append(f"{outcomes.infra} run(s) have no verdict because our side failed: they are in no number")
    if outcomes.shared:
        told.append(f"{outcomes.shared} run(s) of boxes that several agents shared are in no number")
    if outcomes.other_checks:
        told.append(f"{outcomes.other_checks} regraded bundle(s) of other runs or under other checks are in no number")
    return told


def tables(summary: Summary) -> list[Table]:
    """All of one suite's, with what the suite could show at best."""
    first = rates(summary)
    if summary.best_case is None:
        best = f"{summary.pairs} task(s): too few to show any difference to another suite on them, six are the fewest"
    else:
        best = (
            f"{summary.pairs} tasks: the smallest difference to another suite on them that could be shown is "
            f"{_smallest(summary.best_case)} (exact McNemar, power {percent(POWER)}, level {percent(ALPHA)}, best case)"
        )
    first = Table(first.id, first.title, first.columns, first.rows, (*first.notes, best))
    return [table for table in (first, attempts(summary), spread(summary)) if table is not None]
