"""Tables, JSON, SARIF and the page in the documentation, from outcomes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caisson_runner.redteam.outcome import BLOCKED, INAPPLICABLE, NOT_PERFORMED, REACHED, Outcome
from caisson_runner.report.text import printable

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was tried. ``absent``: engine to the reason why it could not be had here."""

    host: str
    outcomes: tuple[Outcome, ...]
    absent: Mapping[str, str]
    scripts: Mapping[str, str]
    """Route id to its script's path below scenarios/."""
    described: Mapping[str, str]
    """Route id to the first line of what its script says of itself."""

    @property
    def good(self) -> bool:
        return all(one.good for one in self.outcomes)

    def bad(self) -> list[Outcome]:
        return [one for one in self.outcomes if not one.good]

    def boxes(self) -> list[tuple[str, str]]:
        """(engine, network) of every kind of box that was tried, in order."""
        return list(dict.fromkeys((one.engine, one.network) for one in self.outcomes))

    def rows(self) -> dict[str, dict[tuple[str, str], Outcome]]:
        """Name of route, then kind of box, to its outcome."""
        table: dict[str, dict[tuple[str, str], Outcome]] = {}
        for one in self.outcomes:
            table.setdefault(one.route, {})[one.engine, one.network] = one
        return table


def summary(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """How many of each verdict, by kind of box."""
    columns = ("engine", "network", "witness", BLOCKED, REACHED, INAPPLICABLE, NOT_PERFORMED, "unrecorded", "wrong")
    rows: list[tuple[str, ...]] = []
    for engine, network in report.boxes():
        here = [one for one in report.outcomes if (one.engine, one.network) == (engine, network)]
        counts = [str(sum(one.verdict == word for one in here)) for word in columns[3:7]]
        silent = sum(not one.recorded_by for one in here if one.verdict in (BLOCKED, REACHED))
        wrong = sum(not one.good for one in here)
        rows.append((engine, network, ", ".join({one.witness for one in here}), *counts, str(silent), str(wrong)))
    return columns, rows


def details(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One row an outcome."""
    columns = ("route", "engine", "network", "verdict", "blocked by", "recorded by", "evidence")
    rows: list[tuple[str, ...]] = []
    for one in report.outcomes:
        mark = "" if one.good else " !"
        first = one.evidence[0] if one.evidence else "-"
        what = ", ".join(one.blocked_by) if one.verdict == BLOCKED else "; ".join(one.reached) or one.reason or "-"
        rows.append(
            (one.route, one.engine, one.network, one.verdict + mark, what, ", ".join(one.recorded_by) or "none", first)
        )
    return columns, rows


def complaints(report: Report) -> list[str]:
    """What is not as it must be, one line each."""
    return [
        f"{one.route} ({one.engine}, network {one.network}): {said}" for one in report.bad() for said in one.complaints
    ]


def as_json(report: Report) -> dict[str, Any]:
    """For machines. Strings that come from a box are bounded and printable."""
    return {
        "schema": "caisson.redteam/v1",
        "good": report.good,
        "host": report.host,
        "absent": {engine: printable(why, 300) for engine, why in report.absent.items()},
        "outcomes": [_clean(one.to_json()) for one in report.outcomes],
        "complaints": [printable(text, 500) for text in complaints(report)],
    }


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, 500)
    if isinstance(value, dict):
        return {key: _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


def as_sarif(report: Report) -> dict[str, Any]:
    """SARIF 2.1.0: one rule a route, one result for each outcome that is wrong or known to be open."""
    ids = list(dict.fromkeys(one.id for one in report.outcomes))
    rules = [{"id": id, "shortDescription": {"text": report.described.get(id, id)}} for id in ids]
    results = []
    for one in report.outcomes:
        if one.good and not one.note:
            continue
        text = "; ".join(one.complaints) or one.note
        results.append(
            {
                "ruleId": one.id,
                "ruleIndex": ids.index(one.id),
                "level": "error" if one.complaints else "note",
                "message": {"text": printable(f"{one.route}, {one.engine}, network {one.network}: {text}", 500)},
                "locations": [_location(report.scripts[one.id])] if one.id in report.scripts else [],
                "properties": {
                    "engine": one.engine,
                    "network": one.network,
                    "verdict": one.verdict,
                    "evidence": [printable(place, 300) for place in one.evidence],
                },
            }
        )
    driver = {"name": "caisson-run redteam routes", "rules": rules}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(path: str) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": path}, "region": {"startLine": 1}}}


PAGE: Final = """\
# Ways out of a box, tried

<!-- Generated by `caisson-run redteam routes --write-docs`; do not edit. -->

Every known way out of a box, each one script of `scenarios/routes/egress` or `scenarios/routes/local`, run in a fresh
box by every engine, on {host}. The outside is a world of its own, a network namespace
with canaries and no other link; a route is *reached* when a canary holds its nonce, or when the box shows what it must
not have, whatever the route itself believes. *blocked* routes say by what, and every attempt must be in a record: the
witness's, or the gate's ([what stays open](threat-model.md)).

    caisson-run redteam routes                      # every engine this user and host can have
    caisson-run redteam routes --only 'ip-*' --json
    caisson-run redteam routes --task PATH          # in the boxes of a task of yours

It fails (exit code 1) when a route reached what it must not, was stopped by something else than declared, or went
unrecorded. `--quick` takes the routes that matter most; `--sarif FILE` is for code scanning.

*no-route*: the box's network holds nothing but its loopback. *no-listener*: nobody listens there in the box's network.
*seccomp*, *caps*, *mount*, *pidns*, *userns*, *ipcns*: the filter, missing capabilities, what the box does not see.
*inert*: what was done has no effect. *gate:…*: the gate's reason code.
"""


def as_markdown(report: Report) -> str:
    """The generated page."""
    parts = [PAGE.format(host=report.host), "## Results\n", _rows(*summary(report))]
    for engine, why in report.absent.items():
        parts.append(f"{engine} was not tried: {printable(why, 300)}.\n")
    groups: dict[str, list[str]] = {}
    for one in report.outcomes:
        names = groups.setdefault(one.group, [])
        if one.route not in names:
            names.append(one.route)
    boxes, table = report.boxes(), report.rows()
    titles = {"B1": "Network", "B2": "Names", "B3": "Through the gate", "B4": "On the machine"}
    for group, names in groups.items():
        parts.append(f"## {titles.get(group, group)}\n")
        columns = ("route", *(f"{engine}, {network}" for engine, network in boxes))
        parts.append(_rows(columns, [(name, *(_cell(table[name].get(box)) for box in boxes)) for name in names]))
    notes = dict.fromkeys(
        (one.route, one.engine, one.note) for one in report.outcomes if one.note and one.verdict != BLOCKED
    )
    parts.append("## Open, or unrecorded, and why\n")
    silent: dict[str, list[str]] = {}
    for one in report.outcomes:
        if one.note and one.verdict == BLOCKED:
            silent.setdefault(f"{one.witness}: {one.note}", []).append(one.id)
    parts.append(_rows(("route", "engine", "why"), list(notes)))
    parts += [f"* {why}: {', '.join(dict.fromkeys(ids))}." for why, ids in silent.items()]
    return "\n".join(parts) + "\n"


def _cell(one: Outcome | None) -> str:
    if one is None:
        return "-"
    what = ", ".join(one.blocked_by) if one.verdict == BLOCKED else one.verdict
    if one.verdict == REACHED and one.good:
        what = "reached, as declared"
    return (
        what
        + ("" if one.recorded_by or one.verdict not in (BLOCKED, REACHED) else ", unrecorded")
        + ("" if one.good else " !")
    )


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(printable(cell, 300).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *(line(row) for row in rows), ""])
