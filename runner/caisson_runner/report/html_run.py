"""One run as HTML: verdict, findings, processes over time, and what the evidence is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from caisson_runner.export.text import shown
from caisson_runner.report.html_model import (
    CHECKS,
    LOG,
    WORDS,
    RunPage,
    integers,
    items_of,
    many,
    moment,
    table_of,
    tables_of,
)
from caisson_runner.report.html_tags import MAX_ROWS, Child, Html, code, joined, rest, said, spaced, table, tag, wide
from caisson_runner.report.html_timeline import timeline
from caisson_runner.report.html_touched import diff_of, files_of, network_of
from caisson_runner.report.text import seconds

_COUNTERS: Final = {
    "seen": ("seen",), "delivered": ("delivered",), "dropped": ("dropped_ring", "dropped_map"),
    "unreadable": ("unreadable",),
}  # fmt: skip
_SEVERITY: Final = {"void": "disqualifies", "warn": "warning", "info": "note"}


def meaning(page: RunPage) -> str:
    """The verdict as a sentence for somebody who reads nothing else."""
    trusting = page.passed("trusting")
    if page.word == "pass":
        return "The work is real: every check outside the agent’s reach confirms it."
    if page.word == "void":
        return "It would pass, but it was not earned: a disqualifying finding stands."
    if not page.word:
        return "Nothing was graded: this is a record of what happened."
    if page.word == "infra":
        return "Our side failed, so there is no verdict on the agent."
    if page.lie:
        return "A naive harness would have passed this run. It was fooled: the true checks fail."
    if trusting is False:
        return "The work is not done, and the naive check says so too."
    return "The work is not done."


def sections(page: RunPage, level: int = 2) -> Html:
    """All of a run but its heading; ``level`` is of the sections' headings."""
    made = (
        ("verdict", "What the checks say", _checks(page) if page.word else None),
        ("findings", "Findings", _findings(page)),
        ("did", "What the agent did", _did(page)),
        ("files", "Files and tests touched", files_of(page)),
        ("network", "Network", network_of(page)),
        ("diff", "State diff", diff_of(page)),
        ("output", "What the agent printed", _output(page)),
        ("evidence", "How far this can be trusted", _evidence(page)),
    )
    found = []
    for name, title, body in made:
        if body is None:
            continue
        identity = f"{name}-{page.number}"
        head = tag(f"h{level}", title, id=identity)
        found.append(tag("section", head, body, aria_labelledby=identity, class_=f"part {name}"))
    return joined(found)


def banner(page: RunPage, level: int = 1) -> Html:
    """The verdict, large."""
    reason = str(page.scene.verdict.get("reason") or page.scene.verdict.get("detail") or "")
    return tag(
        "div",
        tag(f"h{level}", tag("span", "Verdict: ", class_="quiet"), WORDS[page.word], class_="word"),
        tag("p", meaning(page), class_="meaning"),
        tag("p", reason, class_="reason") if reason else None,
        tag("pre", Html("\n".join(joined(line) for line in page.before))) if page.before else None,
        class_=f"banner {page.word}",
    )


def incomplete(page: RunPage) -> Html | None:
    """A record that is not complete says so before anything else."""
    coverage = page.scene.coverage
    if coverage.get("complete") is True:
        return None
    reason = str(coverage.get("reason") or "events were lost, or nothing was watched")
    return tag("p", tag("strong", "The record is not complete: "), reason, class_="alarm", role="note")


def facts(page: RunPage) -> Html:
    """Which run this is, in one list."""
    run, coverage = page.scene.run, page.scene.coverage
    end = table_of(run.get("agent_end"))
    ended = str(end.get("outcome") or "")
    if isinstance(end.get("exit_code"), int):
        ended += f", exit code {end['exit_code']}"
    agents = [one for one in page.model.processes.values() if not one.harness]
    programs = sum(len(one.commands) for one in agents)
    whole = "complete" if coverage.get("complete") is True else "NOT COMPLETE"
    wall = run.get("wall_s")
    rows: list[tuple[str, Child]] = [
        ("Task", page.scene.task),
        ("Agent", page.scene.agent),
        ("Started", moment(run.get("started"))),
        ("Took", seconds(wall) if isinstance(wall, int | float) else ""),
        ("Agent ended", ended),
        ("Box", str(run.get("engine") or "")),
        ("Witness", f"{coverage.get('witness') or 'none'} ({coverage.get('tier') or '–'})"),
        ("Record", f"{many(page.told.total, 'event')}, {whole}"),
        ("Agent ran", f"{many(programs, 'program')} in {many(len(agents), 'process', 'processes')}"),
    ]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows if value], class_="facts")


def _checks(page: RunPage) -> Html:
    cards = []
    for name, title, about in CHECKS:
        check = table_of(page.scene.verdict.get(name))
        cases = tables_of(check.get("cases"))
        reason = str(check.get("reason") or "")
        cards.append(
            tag(
                "li",
                tag("div", tag("strong", title), said(page.passed(name)), class_="row"),
                tag("p", about, class_="quiet"),
                tag("p", reason) if reason else None,
                _cases(cases) if cases else None,
                class_="card",
            )
        )
    return tag("ul", cards, class_="cards", role="list")


def _cases(cases: Sequence[Mapping[str, Any]]) -> Html:
    right = sum(one.get("passed") is True for one in cases)
    rows = [
        (said(one.get("passed") is True), code(one.get("call") or one.get("name") or "", 200), one.get("reason") or "")
        for one in cases[:MAX_ROWS]
    ]
    head = tag("summary", f"{right} of {len(cases)} cases right")
    return tag("details", head, wide(("result", "case", "answer"), rows), rest(len(cases)))


def _findings(page: RunPage) -> Html:
    found = page.findings
    if not found:
        return tag("p", "None. No rule had anything to say about this run.", class_="quiet")
    order = {"void": 0, "warn": 1}
    cards = []
    for one in sorted(found, key=lambda one: order.get(str(one.get("severity")), 2))[:MAX_ROWS]:
        severity = str(one.get("severity") or "info")
        kind = severity if severity in _SEVERITY else "info"
        links: list[Child] = [page.event(seq) for seq in integers(one.get("seqs"))[:20]]
        links += [
            tag("a", f"gate event {seq}", href=f"#gate-{page.number}", class_="ev")
            for seq in integers(one.get("gate"))[:20]
        ]
        paths = items_of(one.get("paths"))
        cards.append(
            tag(
                "li",
                tag("span", _SEVERITY[kind], class_=f"badge {kind}"),
                tag("p", str(one.get("text") or ""), class_="what"),
                tag("p", [[code(path), " "] for path in paths[:20]], class_="paths") if paths else None,
                tag("p", "rule ", code(one.get("rule") or ""), " · " if links else None, spaced(links), class_="quiet"),
                class_=f"finding {kind}",
            )
        )
    return joined(tag("ul", cards, class_="findings", role="list"), rest(len(found)))


def _did(page: RunPage) -> Html:
    if not page.model.processes:
        return tag("p", "Nothing was watched, so nothing can be shown.", class_="quiet")
    return timeline(page.model, page.told, page.number, _marks(page))


def _marks(page: RunPage) -> dict[int, str]:
    return {
        seq: str(one.get("severity"))
        for one in page.findings
        if one.get("severity") in ("void", "warn")
        for seq in integers(one.get("seqs"))
    }


def _output(page: RunPage) -> Html:
    parts = []
    for name, raw in page.logs.items():
        if raw:
            shown_text = "\n".join(shown(line, 2000) for line in raw.split(b"\n"))
            parts += [tag("h3", name.removeprefix("logs/agent.")), tag("pre", _lines(shown_text))]
            if len(raw) == LOG:
                parts.append(tag("p", f"cut after {LOG} bytes; {name} of the bundle has the rest", class_="quiet"))
    return joined(parts) if parts else tag("p", "Nothing.", class_="quiet")


def _lines(text: str) -> Html:
    return Html("\n".join(joined(line) for line in text.split("\n")))


def _evidence(page: RunPage) -> Html:
    coverage = page.scene.coverage
    keyid = page.checked.key.keyid
    signer = page.checked.signer or "not known here: ask its owner"
    parts: list[Child] = [
        tag(
            "p",
            f"The bundle’s {page.checked.files} files are what was signed. Key ",
            code(keyid),
            f" ({signer}). Check it yourself: ",
            code(f"caisson-run bundle verify {page.root.name}"),
        )
    ]
    counts = table_of(coverage.get("counts"))
    rows = [
        (kind, *(_sum(one, *names) for names in _COUNTERS.values()))
        for kind, one in sorted(counts.items())
        if table_of(one).get("seen")
    ]
    if rows:
        parts.append(tag("div", table(("events", *_COUNTERS), rows, class_="numbers"), class_="plain"))
    limits = items_of(coverage.get("limits"))
    if limits:
        parts.append(tag("p", "What this witness cannot see by its nature:"))
        parts.append(tag("ul", [tag("li", str(one)) for one in limits[:50]]))
    state = str(table_of(page.scene.run.get("state")).get("digest") or "")
    if state:
        parts.append(tag("p", "Digest of the final state: ", code(state)))
    return joined(parts)


def _sum(counters: object, *names: str) -> str:
    values = [table_of(counters).get(name) for name in names]
    numbers = [value for value in values if isinstance(value, int)]
    return f"{sum(numbers):,}" if numbers else "–"
