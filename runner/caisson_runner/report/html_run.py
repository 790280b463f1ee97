"""One run as HTML: verdict, findings, processes over time, files, network, and what the evidence is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from caisson_runner.bundle import network
from caisson_runner.bundle.activity import Activity, Changed, Identity, Touch
from caisson_runner.bundle.check import Checked, verify
from caisson_runner.bundle.keys import known
from caisson_runner.bundle.reader import Bundle
from caisson_runner.bundle.show import model_of
from caisson_runner.export.scene import Scene
from caisson_runner.export.text import command_line, errno_name, shown
from caisson_runner.report.html_events import MAX_EVENTS, Told, tell
from caisson_runner.report.html_tags import Child, Html, code, joined, table, tag
from caisson_runner.report.html_timeline import timeline
from caisson_runner.report.text import seconds, size

MAX_ROWS: Final = 400
"""Of one table of a page; how many more there are stands below it."""

_LOG: Final = 4096
WORDS: Final = {
    "pass": "Pass", "fail": "Fail", "void": "Void", "infra": "No verdict",
}  # fmt: skip
CHECKS: Final = (
    ("trusting", "Trusting check", "what a naive harness would believe, in the agent’s own box"),
    ("ground_truth", "Ground truth", "the real final state, in a clean fork that the agent was never in"),
    ("held_out", "Held-out inputs", "inputs drawn anew, which the agent never saw"),
)
_COUNTERS: Final = {
    "seen": ("seen",), "delivered": ("delivered",), "dropped": ("dropped_ring", "dropped_map"),
    "unreadable": ("unreadable",),
}  # fmt: skip
_SEVERITY: Final = {"void": "disqualifies", "warn": "warning", "info": "note"}


@dataclass(frozen=True, slots=True)
class RunPage:
    """Everything of one bundle that a page needs. ``number`` tells runs of one page apart."""

    number: int
    root: Path
    scene: Scene
    checked: Checked
    model: Activity
    told: Told
    asked: Sequence[network.Asked]
    logs: Mapping[str, bytes]

    @property
    def word(self) -> str:
        word = str(self.scene.verdict.get("word") or "")
        return word if word in WORDS else "infra"

    @property
    def lie(self) -> bool:
        return self.scene.verdict.get("lie") is True

    def passed(self, check: str) -> bool | None:
        """What one of `CHECKS` said; None where there was none."""
        value = table_of(self.scene.verdict.get(check)).get("passed")
        return value if isinstance(value, bool) else None

    def event(self, seq: int) -> Html:
        """A link to an event of the record."""
        return tag("a", f"event {seq}", href=f"#e-{self.number}-{seq}", class_="ev")


def read_run(root: Path, number: int = 0, limit: int = MAX_EVENTS) -> RunPage:
    """Verifies a bundle and reads it. Raises `BundleDamaged` when it is not what was signed."""
    checked = verify(root, known())
    bundle = Bundle.open(root)
    scene = Scene.of(bundle)
    model = model_of(bundle)
    pointed = {seq for one in scene.findings for seq in integers(one.get("seqs"))}
    told = tell(bundle, scene, pointed, {one.path for one in model.changes}, limit)
    logs = {}
    for name in ("logs/agent.stdout", "logs/agent.stderr"):
        if bundle.has(name):
            with (root / name).open("rb") as file:
                logs[name] = file.read(_LOG)
    return RunPage(number, root, scene, checked, model, told, network.asked_of(root), logs)


def table_of(value: object) -> Mapping[str, Any]:
    """A table of a stranger's JSON, or an empty one."""
    return value if isinstance(value, dict) else {}


def integers(value: object) -> list[int]:
    """The whole numbers of a stranger's list."""
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


def many(count: int, one: str, several: str = "") -> str:
    """``1 event``, ``2,000 events``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def moment(value: object) -> str:
    """An ISO 8601 time as people write it; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(str(value)).astimezone(UTC):%d %b %Y, %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return str(value or "")


def said(passed: bool | None) -> Html:
    """PASS, fail or a dash, for a person and a screen reader."""
    if passed is None:
        return tag("span", "–", class_="said none", aria_label="no verdict")
    return tag("span", "PASS" if passed else "fail", class_="said " + ("good" if passed else "bad"))


def meaning(page: RunPage) -> str:
    """The verdict as a sentence for somebody who reads nothing else."""
    trusting = page.passed("trusting")
    if page.word == "pass":
        return "The work is real: every check outside the agent’s reach confirms it."
    if page.word == "void":
        return "It would pass, but it was not earned: a disqualifying finding stands."
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
        ("verdict", "What the checks say", _checks(page)),
        ("findings", "Findings", _findings(page)),
        ("did", "What the agent did", _did(page)),
        ("files", "Files and tests touched", _files(page)),
        ("network", "Network", _network(page)),
        ("diff", "State diff", _diff(page)),
        ("output", "What the agent printed", _output(page)),
        ("evidence", "How far this can be trusted", _evidence(page)),
    )
    found = []
    for name, title, body in made:
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
        cases = [one for one in check.get("cases") or () if isinstance(one, dict)] if check else []
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
    return tag("details", head, _wide(("result", "case", "answer"), rows), _rest(len(cases)))


def _findings(page: RunPage) -> Html:
    found = page.scene.findings
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
        paths = one.get("paths") if isinstance(one.get("paths"), list) else []
        cards.append(
            tag(
                "li",
                tag("span", _SEVERITY[kind], class_=f"badge {kind}"),
                tag("p", str(one.get("text") or ""), class_="what"),
                tag("p", [[code(path), " "] for path in paths[:20]], class_="paths") if paths else None,
                tag(
                    "p", "rule ", code(one.get("rule") or ""), " · " if links else None, _spaced(links), class_="quiet"
                ),
                class_=f"finding {kind}",
            )
        )
    return joined(tag("ul", cards, class_="findings", role="list"), _rest(len(found)))


def _spaced(children: Iterable[Child]) -> list[Child]:
    return [[child, " "] for child in children]


def _did(page: RunPage) -> Html:
    if not page.model.processes:
        return tag("p", "Nothing was watched, so nothing can be shown.", class_="quiet")
    return timeline(page.model, page.told, page.number, _marks(page))


def _marks(page: RunPage) -> dict[int, str]:
    return {
        seq: str(one.get("severity"))
        for one in page.scene.findings
        if one.get("severity") in ("void", "warn")
        for seq in integers(one.get("seqs"))
    }


def who(model: Activity, identity: Identity) -> Html:
    """A process by its pid and what it was."""
    process = model.processes.get(identity)
    if process is None:
        return joined(f"pid {identity[0]}")
    if not process.commands:
        return joined(f"pid {process.pid} ", code(f"({shown(process.comm, 20)})"))
    return joined(f"pid {process.pid} ", code(command_line(process.commands[-1].argv, 200), 90))


def _files(page: RunPage) -> Html:
    model = page.model
    groups: list[tuple[str, list[tuple[Child, ...]]]] = [
        ("Tests and test configuration", list(_group(page, {"test", "config"}, set()))),
        ("Written outside the workspace", list(_group(page, {"outside", "room"}, {"test", "config"}))),
        ("In the workspace", list(_group(page, set(), {"test", "config", "outside", "room", "scratch"}))),
        ("Places of answers and graders looked into", list(_rooms(page))),
    ]
    parts: list[Child] = []
    for title, rows in groups:
        if rows:
            parts.append(tag("h3", title, tag("span", f" {len(rows):,}", class_="quiet")))
            parts.append(_wide(("what", "path", "by", "event"), rows[:MAX_ROWS]))
            parts.append(_rest(len(rows)))
    if not parts:
        return tag("p", "No file of the task, no test and no place of a grader was touched.", class_="quiet")
    if model.missed:
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(model.missed.items()))
        parts.append(tag("p", f"Beyond what this page holds: {told}. The record has them.", class_="quiet"))
    return joined(parts)


def _group(page: RunPage, needed: set[str], refused: set[str]) -> Iterator[tuple[Child, ...]]:
    """Paths of the state diff with one of the tags ``needed`` and none ``refused``; then writes that left nothing."""

    def fits(tags: tuple[str, ...]) -> bool:
        return (not needed or bool(needed & set(tags))) and not refused & set(tags) and "cache" not in tags

    final = {one.path for one in page.model.changes}
    for changed in page.model.changes:
        if fits(changed.tags) and (changed.kind != "dir" or changed.how == "removed"):
            yield _how(changed.how), code(shown(changed.path)), _by(page, changed), _events(page, changed.path)
    for touch in page.model.touched():
        if touch.writing and touch.path not in final and fits(touch.tags):
            how = "written, then gone" if touch.succeeded else "refused " + _errors(touch)
            yield how, code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)
    if "test" in needed:
        for touch in page.model.touched():
            if not touch.writing and touch.succeeded and "test" in touch.tags and "cache" not in touch.tags:
                yield "read", code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)


def _rooms(page: RunPage) -> Iterator[tuple[Child, ...]]:
    for touch in page.model.touched():
        if "room" in touch.tags and not touch.writing:
            how = f"opened ×{touch.succeeded}" if touch.succeeded else "looked for " + _errors(touch)
            yield how, code(shown(touch.path)), who(page.model, touch.process), page.event(touch.first_seq)


def _errors(touch: Touch) -> str:
    return ", ".join(errno_name(error) or "" for error in sorted(touch.errors))


def _how(how: str) -> Html:
    return tag("span", how, class_=f"how {how if how in ('added', 'changed', 'removed') else ''}")


def _by(page: RunPage, changed: Changed) -> Html:
    if changed.by:
        rest = f" and {len(changed.by) - 2} more" if len(changed.by) > 2 else None
        return joined([[who(page.model, one), " "] for one in changed.by[:2]], rest)
    if changed.near:
        return joined("likely ", who(page.model, changed.near[0]))
    return joined("not by an open that was seen")


def _events(page: RunPage, path: bytes) -> Html:
    return joined(_spaced(page.event(seq) for seq in page.told.by_path.get(path, ())))


def _network(page: RunPage) -> Html:
    mode = str(table_of(page.scene.run.get("network")).get("mode") or "")
    parts: list[Child] = []
    if page.asked:
        rows = [
            (
                tag("span", one.verdict, class_="how " + ("removed" if one.verdict == "deny" else "added")),
                code(one.what),
                one.reason,
                f"{' '.join(map(str, sorted(one.statuses)))}{', ' if one.statuses else ''}×{one.count}",
                size(one.received) if one.received else "",
                ", ".join(f"pid {pid}" for pid in sorted(one.pids)[:5]),
            )
            for one in page.asked[:MAX_ROWS]
        ]
        refused = sum(one.count for one in page.asked if one.verdict == "deny")
        asked = sum(one.count for one in page.asked)
        parts.append(tag("p", f"{many(asked, 'question')} reached the gate; refused: {refused:,}."))
        parts.append(_wide(("gate", "what", "reason", "result", "received", "by"), rows, f"gate-{page.number}"))
        parts.append(_rest(len(page.asked)))
    tried = [one for one in page.model.attempts.values() if not page.model.is_harness(one.process)]
    if tried:
        connects = [
            (
                code(shown(one.where)),
                ", ".join(f"{errno_name(error) or 'connected'} ×{n}" for error, n in sorted(one.results.items())),
                who(page.model, one.process),
                page.event(one.first_seq),
            )
            for one in tried[:MAX_ROWS]
        ]
        parts.append(tag("h3", "Connects tried", tag("span", f" {len(tried):,}", class_="quiet")))
        parts.append(_wide(("to", "result", "by", "event"), connects))
        parts.append(_rest(len(tried)))
    if parts:
        return joined(parts)
    none = "The box had no network." if mode == "none" else "Nothing was asked of the gate."
    return tag("p", f"{none} No connect was tried.", class_="quiet")


def _diff(page: RunPage) -> Html:
    changes = page.model.changes
    if not changes:
        return tag("p", "The final state is the snapshot itself: nothing was changed.", class_="quiet")
    counts = {how: sum(one.how == how for one in changes) for how in ("added", "changed", "removed")}
    head = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)
    rows = [
        (
            _how(one.how), code(shown(one.path)), one.kind, size(one.size) if one.kind == "file" else "",
            ", ".join(one.tags),
        )
        for one in changes[:MAX_ROWS]
    ]  # fmt: skip
    body = _wide(("what", "path", "kind", "size", "is"), rows)
    differ = f"{many(len(changes), 'path')} {'differs' if len(changes) == 1 else 'differ'} from the snapshot: {head}"
    return tag("details", tag("summary", differ), body, _rest(len(changes)))


def _output(page: RunPage) -> Html:
    parts = []
    for name, raw in page.logs.items():
        if raw:
            shown_text = "\n".join(shown(line, 2000) for line in raw.split(b"\n"))
            parts += [tag("h3", name.removeprefix("logs/agent.")), tag("pre", _lines(shown_text))]
            if len(raw) == _LOG:
                parts.append(tag("p", f"cut after {_LOG} bytes; {name} of the bundle has the rest", class_="quiet"))
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
    limits = coverage.get("limits")
    if isinstance(limits, list) and limits:
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


def _wide(head: Sequence[str], rows: Iterable[Iterable[Child]], identity: str | None = None) -> Html:
    return tag("div", table(head, rows), class_="wide", id=identity, tabindex="0", role="group", aria_label="table")


def _rest(count: int, limit: int = MAX_ROWS) -> Html | None:
    return tag("p", f"… and {count - limit:,} more, which the bundle has", class_="quiet") if count > limit else None
