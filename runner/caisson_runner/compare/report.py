"""A comparison as tables: for the terminal, as JSON, and as the page ``docs/compare.md``. Pure but for printing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from caisson_runner.compare.deeds import EVENTS
from caisson_runner.compare.plan import Comparison
from caisson_runner.compare.rig import Outcome
from caisson_runner.report.text import printable


@dataclass(frozen=True, slots=True)
class Count:
    """Single events of one class under one eye."""

    expected: int = 0
    seen: int = 0
    wrong: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.expected + other.expected, self.seen + other.seen, self.wrong + other.wrong)


@dataclass(frozen=True, slots=True)
class Grid:
    """One table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def by_event(found: Comparison) -> dict[str, dict[str, Count]]:
    """Class of event, then eye, to its counts over all routes."""
    table: dict[str, dict[str, Count]] = {}
    for one in found.outcomes:
        for mark in one.marks:
            row = table.setdefault(mark.deed.event, {})
            row[one.eye] = row.get(one.eye, Count()) + Count(mark.expected, mark.seen, mark.wrong)
    return {event: table[event] for event in EVENTS if event in table}


def by_route(found: Comparison) -> dict[str, dict[str, Outcome]]:
    """Name of route, then eye, to its outcome."""
    table: dict[str, dict[str, Outcome]] = {}
    for one in found.outcomes:
        table.setdefault(one.route.name, {})[one.eye] = one
    return table


def grids(found: Comparison) -> list[Grid]:
    """Every table of the report."""
    tables = [_summary(found), _events(found), _routes(found)]
    if found.loads:
        tables.append(_loads(found))
    if found.visibility:
        tables.append(_visibility(found))
    return tables


def _summary(found: Comparison) -> Grid:
    rows = []
    for eye in found.eyes:
        words = [one.word for one in found.outcomes if one.eye == eye]
        wrong = sum(one.wrong for one in found.outcomes if one.eye == eye)
        counted = tuple(str(words.count(word)) for word in ("seen", "partly", "missed", "inapplicable"))
        rows.append((eye, *counted, str(wrong)))
    return Grid(
        "Routes", ("witness", "seen", "partly", "missed", "inapplicable", "wrong names"), tuple(rows), found.absent
    )


def _events(found: Comparison) -> Grid:
    rows = []
    for event, row in by_event(found).items():
        expected = max(count.expected for count in row.values())
        rows.append((event, str(expected), *(_count(row.get(eye)) for eye in found.eyes)))
    notes = (
        "seen of those it was asked about: call, object and result; in brackets what was told wrongly and not marked "
        "as doubtful",
    )
    return Grid("Events", ("class", "done", *found.eyes), tuple(rows), notes)


def _count(count: Count | None) -> str:
    if count is None:
        return "-"
    return f"{count.seen}/{count.expected}" + (f" ({count.wrong} wrong)" if count.wrong else "")


def _routes(found: Comparison) -> Grid:
    rows = []
    for name, row in by_route(found).items():
        rows.append((name, *(_word(row.get(eye)) for eye in found.eyes)))
    return Grid("Route by route", ("route", *found.eyes), tuple(rows), ("! : not as the register expects",))


def _word(one: Outcome | None) -> str:
    if one is None:
        return "-"
    wrong = f" ({one.wrong} wrong)" if one.wrong else ""
    return f"{one.word}{wrong}{'' if one.right else ' !'}"


def _loads(found: Comparison) -> Grid:
    rows = []
    for load in found.loads:
        files = f"{load.seen}/{load.expected}" if load.eye != "none" else "-"
        programs = f"{load.processes_seen}/{load.processes}" if load.eye != "none" and load.processes else "-"
        rows.append((load.name, load.eye, f"{load.wall_s:.2f} s", f"{load.over:.2f}", files, programs, load.note))
    columns = ("workload", "witness", "wall", "times", "files told", "programs told", "remark")
    return Grid(
        "Workloads", columns, tuple(rows), ("median wall time; times: as a multiple of that without a witness",)
    )


def _visibility(found: Comparison) -> Grid:
    rows = []
    for one in found.visibility:
        slower = max(one.slower, key=lambda pair: pair[1], default=("", 1.0))
        shows = ("yes" if one.shows else "no") + ("" if one.as_expected else " !")
        rows.append((one.eye, shows, ", ".join(one.answers) or "-", f"{slower[0]} ×{slower[1]:.2f}"))
    return Grid("Can the box tell?", ("witness", "shows", "answers that differ", "slowest of the timings"), tuple(rows))


def as_json(found: Comparison) -> dict[str, Any]:
    """The whole comparison for machines. Bytes from a box never get here, only counts and our own words."""
    return {
        "good": found.good,
        "host": found.host,
        "engine": found.engine,
        "witnesses": list(found.eyes),
        "absent": [printable(text, 300) for text in found.absent],
        "routes": [
            {
                "route": one.route.name,
                "witness": one.eye,
                "result": one.word,
                "expected": str(one.route.expected[one.kind]) if one.kind in one.route.expected else None,
                "right": one.right,
                "wrong": one.wrong,
                "reason": printable(one.reason, 300),
                "why": one.route.expected[one.kind].why if one.kind in one.route.expected else "",
                "note": printable(one.note, 300),
                "wall_s": round(one.wall_s, 4),
            }
            for one in found.outcomes
        ],
        "events": {
            event: {
                eye: {"expected": count.expected, "seen": count.seen, "wrong": count.wrong}
                for eye, count in row.items()
            }
            for event, row in by_event(found).items()
        },
        "workloads": [
            {
                "name": load.name,
                "witness": load.eye,
                "wall_s": round(load.wall_s, 4),
                "times": round(load.over, 3),
                "files": load.expected,
                "files_seen": load.seen,
                "programs": load.processes,
                "programs_seen": load.processes_seen,
                "note": printable(load.note, 300),
            }
            for load in found.loads
        ],
        "visible": [
            {
                "witness": one.eye,
                "shows": one.shows,
                "as_expected": one.as_expected,
                "answers": list(one.answers),
                "times": {what: round(ratio, 3) for what, ratio in one.slower},
            }
            for one in found.visibility
        ],
    }


INTRODUCTION = """\
# Compared: eBPF, strace, polling

<!-- Generated by `caisson-run compare --write-docs`; do not edit. -->

Why not just strace it? The same deeds, each done by one script of `scenarios/routes/witness` that writes down what it
did, watched by each witness in a fresh box: {host}, engine {engine}.

*seen*: the call, its object and its result are told. *partly*: some of that. *missed*: nothing. *wrong*: a name that
was not what the kernel used, told without a mark of doubt. eBPF is asked for looks too (off by default) in the routes,
not in the workloads. strace runs at its best: `-f --seccomp-bpf -yy -v`, with every call it can show of these classes
but read and write. Polling reads command lines, descriptors, mappings and sockets of every process of the box. What
chance decides (whether a poll falls into the right moment) differs from run to run.
"""


def as_markdown(found: Comparison) -> str:
    """The generated page."""
    parts = [INTRODUCTION.format(host=found.host, engine=found.engine)]
    for grid in grids(found):
        parts.append(f"## {grid.title}\n")
        parts.append(_rows(grid.columns, grid.rows))
        parts += [f"{note}.\n" for note in grid.notes]
    parts.append("## Why not seen\n")
    parts.append(_rows(("route", "witness", "result", "reason"), tuple(_reasons(found))))
    return "\n".join(parts)


def _reasons(found: Comparison) -> Iterable[tuple[str, ...]]:
    for name, row in by_route(found).items():
        for kind in ("ebpf", "strace"):
            one = next((outcome for outcome in row.values() if outcome.kind == kind), None)
            if one is not None and one.word != "seen":
                why = one.reason if one.word in ("inapplicable", "not-performed") else one.route.expected[kind].why
                yield name, one.eye, one.word, why


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(printable(cell, 300).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *(line(row) for row in rows), ""])


def complaints(found: Comparison) -> list[str]:
    """Why the comparison is not as declared, one line each."""
    said = [
        f"{one.route.name} under {one.eye}: {one.word}, expected {one.route.expected[one.kind]}"
        + (f" ({one.reason})" if one.reason else "")
        for one in found.differences()
    ]
    said += [f"{one.route.name} is a control, and {one.eye} shows it {one.word}" for one in found.blind()]
    said += [
        f"{one.eye} {'shows' if one.shows else 'does not show'} in the box: {', '.join(one.answers) or 'times only'}"
        for one in found.visible_differences()
    ]
    return said
