"""`caisson-run stats`."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caisson_runner.commands.common import emit
from caisson_runner.outcomes import NoResults, read_outcomes
from caisson_runner.report.text import one_line
from caisson_runner.statistics.outcomes import By, Outcomes
from caisson_runner.statistics.paired import Comparison, compare
from caisson_runner.statistics.summary import Summary, summarize


def stats_command(folder: Path, other: Path | None, by: By, agent: str, other_agent: str, as_json: bool) -> int:
    """Numbers of one suite, or of two and their comparison."""
    sides = [(folder, agent)]
    if other is not None or other_agent:
        sides.append((other or folder, other_agent or agent))
    read = [_outcomes(place, glob) for place, glob in sides]
    summaries = [summarize(outcomes, by) for outcomes in read]
    found = compare(read[0].attempts, read[1].attempts) if len(read) == 2 else None
    if len(read) == 2 and found is None:
        raise NoResults(f"{sides[0][0]} and {sides[1][0]} have no task in common: there is nothing to compare")
    names = [f"{place}" + (f" ({glob})" if glob else "") for place, glob in sides]
    if as_json:
        emit(_document(names, read, summaries, found))
    else:
        _print(names, read, summaries, found)
    return 0


def _outcomes(place: Path, glob: str) -> Outcomes:
    outcomes = read_outcomes(place, lambda result: not glob or fnmatch.fnmatchcase(result.behaviour, glob))
    if not outcomes.attempts:
        raise NoResults(f"{place}: all of its {outcomes.infra} runs are without a verdict: there is nothing to count")
    return outcomes


def _document(
    names: list[str], read: list[Outcomes], summaries: list[Summary], found: Comparison | None
) -> dict[str, Any]:
    suites = [
        {
            "suite": name,
            "left_out": {"infra": o.infra, "shared": o.shared, "other_checks": o.other_checks},
            **_summary(s),
        }
        for name, o, s in zip(names, read, summaries, strict=True)
    ]
    return {"schema": "caisson.stats/v1", "suites": suites, "comparison": None if found is None else asdict(found)}


def _summary(summary: Summary) -> dict[str, Any]:
    told = asdict(summary)
    for table, group in zip((*told["groups"], told["whole"]), (*summary.groups, summary.whole), strict=True):
        table["spread"]["bounds"] = group.spread.bounds
    return told


def _print(names: list[str], read: list[Outcomes], summaries: list[Summary], found: Comparison | None) -> None:
    from caisson_runner.report.statistics import comparison, left_out, tables
    from caisson_runner.report.terminal import print_table

    for letter, name, outcomes, summary in zip("AB", names, read, summaries, strict=False):
        print(one_line(f"{letter}: {name}" if len(names) == 2 else name) + "\n")
        for table in tables(summary):
            print_table(table)
        for line in left_out(outcomes):
            print(f"  {line}")
    if found is not None:
        print_table(comparison((names[0], names[1]), found))
