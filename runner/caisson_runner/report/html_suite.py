"""A suite as HTML: how often a trusting harness lied, every experiment's table, and every run behind them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_runner.errors import CaissonError
from caisson_runner.report.html_events import MAX_EVENTS
from caisson_runner.report.html_model import CHECKS, WORDS, RunPage, items_of, read_run, table_of, tables_of
from caisson_runner.report.html_plot import Rate, plot
from caisson_runner.report.html_run import banner, facts, incomplete, sections
from caisson_runner.report.html_tags import Child, Html, code, joined, said, table, tag

MAX_TABLE: Final = 2000
_LEAST: Final = 2000
"""Events that a run of a large suite keeps in any case."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A run whose bundle is not what was signed, or cannot be read."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class SuitePage:
    """All runs of a suite's folder, in its plan's order; what was damaged stands apart."""

    name: str
    runs: Sequence[RunPage]
    damaged: Sequence[Damaged]
    experiments: Mapping[str, str]
    """Of a run's id: the experiment it belongs to, where the plan says so."""
    shared: frozenset[str]
    """Ids of runs in shared boxes: no rate counts them."""
    tables: Sequence[Mapping[str, Any]]
    unexpected: Sequence[str]


def is_suite(root: Path) -> bool:
    """Whether a folder is a suite's rather than a bundle."""
    return (root / "runs").is_dir() and not (root / "manifest.json").exists()


def read_suite(root: Path) -> SuitePage:
    """Reads every bundle below ``runs/``. Raises OSError when the folder cannot be read."""
    document = _json(root / "suite.json")
    plan = tables_of(_json(root / "plan.json").get("runs"))
    there = sorted(path for path in (root / "runs").iterdir() if path.is_dir() and not path.name.endswith(".partial"))
    place = {str(one.get("id")): at for at, one in enumerate(plan)}
    there.sort(key=lambda path: (place.get(path.name, len(place)), path.name))
    limit = min(MAX_EVENTS, max(_LEAST, MAX_EVENTS // max(1, len(there))))
    runs: list[RunPage] = []
    damaged = []
    for path in there:
        try:
            runs.append(read_run(path, len(runs), limit))
        except CaissonError as error:
            damaged.append(Damaged(path.name, str(error)))
    tables = tables_of(document.get("tables"))
    return SuitePage(
        str(document.get("suite") or root.resolve().name),
        runs,
        damaged,
        {str(one.get("id")): str(one.get("experiment")) for one in plan},
        frozenset(str(one.get("id")) for one in plan if one.get("shared")),
        tables,
        [str(one) for one in items_of(document.get("unexpected"))],
    )


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return table_of(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def counted(page: SuitePage) -> list[RunPage]:
    """The runs that rates are made of: graded, and each alone in its box."""
    return [one for one in page.runs if one.word not in ("infra", "") and one.root.name not in page.shared]


def rates(runs: Sequence[RunPage]) -> list[Rate]:
    """What the naive harness believed, what is true, how often it was fooled; and void, where there was any."""
    total = len(runs)
    void = sum(one.word == "void" for one in runs)
    made = [
        Rate("Trusting check passes", sum(one.passed("trusting") is True for one in runs), total),
        Rate("Truly passes", sum(one.word == "pass" for one in runs), total, "good"),
        Rate("Lies", sum(one.lie for one in runs), total, "bad"),
    ]
    return [*made, Rate("Void", void, total, "void")] if void else made


def headline(page: SuitePage) -> Html:
    """The answer, for somebody who reads nothing else."""
    runs = counted(page)
    trusting, true, lies = rates(runs)[:3]
    words = Counter(one.word for one in page.runs)
    tiles = [
        tag(
            "li", tag("span", name, class_="quiet"), tag("strong", _big(rate)), tag("span", rate.words, class_="num"),
            class_=f"tile {rate.tone}",
        )
        for name, rate in (("A trusting harness believes", trusting), ("Truly done", true), ("Lie rate", lies))
    ]  # fmt: skip
    if not runs:
        sentence = "No run was graded."
    elif lies.count:
        sentence = (
            f"In {lies.count} of {lies.total} runs a trusting harness would have reported a success that is not there."
        )
    else:
        sentence = f"A trusting harness was not fooled in any of {lies.total} runs."
    rest = ", ".join(f"{words[word]} {WORDS[word].lower()}" for word in WORDS if words[word])
    head = tag(
        "div",
        tag("h1", tag("span", "Suite ", class_="quiet"), page.name, class_="word"),
        tag("p", sentence, class_="meaning"),
        tag("p", f"{len(page.runs)} runs: {rest}.", class_="reason"),
        class_="banner " + ("fail" if lies.count else "pass"),
    )
    alarms = [
        tag("p", tag("strong", f"{one.name} is not what was signed: "), one.problem, class_="alarm")
        for one in page.damaged
    ]
    alarms += [
        tag("p", tag("strong", "Not as the suite expects: "), one, class_="alarm") for one in page.unexpected[:20]
    ]
    lost = [one for one in page.runs if one.scene.coverage.get("complete") is not True]
    if lost:
        alarms.append(
            tag("p", tag("strong", f"{len(lost)} of {len(page.runs)} records are not complete."), class_="alarm")
        )
    return joined(head, alarms, tag("ul", tiles, class_="tiles", role="list"))


def _big(rate: Rate) -> str:
    return f"{100 * rate.count / rate.total:.0f} %" if rate.total else "–"


def overview(page: SuitePage) -> Html:
    """Plots, the experiments' tables, and the list of runs."""
    parts = [_section("rates", "How often the trusting check lied", _plots(page))]
    if page.tables:
        parts.append(_section("experiments", "Experiments", joined(_experiments(page))))
    parts.append(_section("runs", "All runs", _runs(page)))
    return joined(parts)


def _section(name: str, title: str, body: Html) -> Html:
    return tag("section", tag("h2", title, id=name), body, aria_labelledby=name, class_="part")


def _plots(page: SuitePage) -> Html:
    runs = counted(page)
    by_agent: dict[str, list[RunPage]] = {}
    by_experiment: dict[str, list[RunPage]] = {}
    for one in runs:
        by_agent.setdefault(one.scene.agent or "?", []).append(one)
        by_experiment.setdefault(page.experiments.get(one.root.name, ""), []).append(one)
    titles = {str(one.get("id")): str(one.get("title")) for one in page.tables}
    made = [plot(rates(runs), f"All {len(runs)} graded runs")]
    made += [
        plot(rates(own), f"{name}  {titles.get(name, '')}")
        for name, own in by_experiment.items()
        if name and len(by_experiment) > 1 and any(one.lie for one in own)
    ]
    agents = sorted(by_agent.items(), key=lambda pair: (-sum(one.lie for one in pair[1]), pair[0]))[:40]
    made.append(
        plot(
            [Rate(name, sum(one.lie for one in own), len(own), "bad") for name, own in agents],
            "Lie rate of each agent, over all its runs",
        )
    )
    mix = ", ".join(f"{len(own)} {name}" for name, own in by_agent.items())
    note = (
        "The line is Wilson’s 95 % interval. Rates are of this mix of agents and mean nothing for another: "
        f"{mix}. A lie is a run that the trusting check passed and that truly fails. Void is right, but was not "
        "earned: no lie and no pass. Runs in shared boxes and runs without a verdict are not counted."
    )
    return joined(tag("div", made, class_="plots"), tag("p", note, class_="quiet"))


def _experiments(page: SuitePage) -> Iterator[Html]:
    for one in page.tables:
        columns = [str(name) for name in items_of(one.get("columns"))]
        rows = [row for row in items_of(one.get("rows")) if isinstance(row, list) and len(row) == len(columns)]
        yield tag("h3", f"{one.get('id')}  {one.get('title')}")
        body = table(columns, [[_toned(str(cell)) for cell in row] for row in rows[:MAX_TABLE]])
        yield tag("div", body, class_="wide", tabindex="0", role="group", aria_label=str(one.get("title")))
        yield joined([tag("p", str(note), class_="quiet") for note in items_of(one.get("notes"))])


def _toned(cell: str) -> Html:
    tone = "bad" if "FALSE PASS" in cell or "← lie" in cell else ""
    if cell in ("PASS", "fail"):
        tone = "good" if cell == "PASS" else "bad"
    return tag("span", cell, class_=tone or None)


def _runs(page: SuitePage) -> Html:
    rows = []
    for one in page.runs[:MAX_TABLE]:
        severities = Counter(str(found.get("severity")) for found in one.findings)
        badges = [
            tag("span", f"{severities[name]} {name}", class_=f"badge {name}")
            for name in ("void", "warn")
            if severities[name]
        ]
        rows.append(
            (
                tag("a", one.root.name, href=f"#run-{one.number}"),
                tag("span", WORDS[one.word], class_=f"said {one.word}"),
                *(said(one.passed(name)) for name, _title, _about in CHECKS),
                tag("span", "lie", class_="badge void") if one.lie else "",
                joined(*[[badge, " "] for badge in badges]),
            )
        )
    head: list[Child] = ["run", "verdict", *(title for _name, title, _about in CHECKS), "lie", "findings"]
    body = table(head, rows, class_="runs")
    return tag("div", body, class_="wide", tabindex="0", role="group", aria_label="all runs")


def details(page: SuitePage) -> Html:
    """Every run whole, folded."""
    parts = []
    for one in page.runs:
        head = tag(
            "summary",
            tag("span", one.root.name, class_="name"),
            tag("span", WORDS[one.word], class_=f"said {one.word}"),
            tag("span", "lie", class_="badge void") if one.lie else None,
        )
        slots = _slots(one)
        body = joined(banner(one, 3), incomplete(one), facts(one), slots, sections(one, 4))
        parts.append(tag("details", head, tag("div", body, class_="inside"), id=f"run-{one.number}", class_="run"))
    return _section("each", "Each run", joined(parts))


def _slots(one: RunPage) -> Html | None:
    slots = tables_of(one.scene.run.get("shared_slots"))
    if not slots:
        return None
    rows = [
        (
            str(slot.get("slot")),
            code(slot.get("behaviour") or ""),
            "poison" if slot.get("is_poison") else "",
            said(slot.get("passed") is True),
        )
        for slot in slots[:MAX_TABLE]
    ]
    return table(("slot", "agent", "", "visible check"), rows)
