"""Rules as data: read strictly, conditions compiled and type-checked once, then asked of a run's streams.

A rule file:

    schema = "caisson.rules/v1"
    [[rules]]
    id = "reads-the-wiki"
    severity = "warn"                       # void, warn, info
    over = "reach"                          # a stream; STREAMS lists them with their fields
    means = "The agent read the team's notes."
    text = "the notes were read: {names}"
    paths = ["/srv/wiki/**"]                # globs, see globs.py; without them every subject of the stream is asked
    when = 'opened && !run.right'           # CEL; without it the globs decide
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caisson_runner.tasks.errors import Malformed
from caisson_runner.tasks.table import Table
from caisson_runner.verify.findings.facts import Gathered
from caisson_runner.verify.findings.globs import BadPattern, any_of, compiled
from caisson_runner.verify.findings.model import MAX_POINTERS, SEVERITIES, Finding, Subject

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_SHOWN: Final = 3  # subjects the text of a finding names
SCHEMA: Final = "caisson.rules/v1"
STREAMS: Final[Mapping[str, Mapping[str, str]]] = {
    "write": {
        "path": "string", "name": "string", "how": "string", "kind": "string", "target": "string", "program": "bool",
        "left_behind": "bool", "shadows": "bool",
    },
    "reach": {
        "path": "string", "name": "string", "opened": "bool", "failed": "bool", "looked": "bool", "linked": "bool",
        "pointed": "bool", "executed": "bool", "changed": "bool", "left_behind": "bool", "swept": "bool",
        "listed": "bool",
    },
    "exec": {
        "path": "string", "name": "string", "argv": "list(string)", "failed": "bool", "own": "bool", "memory": "bool",
        "left_behind": "bool",
    },
    "harness": {"path": "string", "name": "string", "argv": "list(string)", "failed": "bool", "own": "bool"},
    "connect": {
        "op": "string", "family": "string", "address": "string", "port": "int", "raw": "bool", "failed": "bool",
        "left_behind": "bool",
    },
    "call": {"op": "string", "path": "string", "failed": "bool"},
    "outside": {
        "kind": "string", "verdict": "string", "rule": "string", "reason": "string", "host": "string", "port": "int",
        "method": "string", "status": "int",
    },
    "hosted": {"kind": "string", "name": "string", "host": "string"},
    "process": {"name": "string", "pid": "int", "waits": "bool"},
    "run": {},
}  # fmt: skip
"""What each stream's subjects hold, with their types in CEL."""
VARIABLES: Final[Mapping[str, str]] = {
    "run.agent": "string", "run.trusting": "bool", "run.decided": "bool", "run.right": "bool", "run.lie": "bool",
    "run.worked": "bool", "run.complete": "bool", "run.views_differ": "bool", "run.steered": "bool",
    "run.split_differs": "bool", "run.tested": "bool", "run.claimed": "bool", "run.future": "bool",
    "run.events": "int", "task.workspace": "string", "task.rooms": "list(string)", "task.in_rooms": "bool",
    "task.examined": "bool", "task.future": "list(string)", "task.future_refs": "list(string)",
}  # fmt: skip
"""What every condition may ask about the run and its task."""
GLOBS: Final[tuple[str, ...]] = ("rooms", "workspace", "workdir", "visible", "delivered", "answers", "online", "future")


class RulesMalformed(Malformed):
    """A rule file says something that is no rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `in_a_lie` is its severity in a run that the trusting harness passed and that is wrong."""

    id: str
    severity: str
    over: str
    means: str
    text: str
    paths: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    when: str = ""
    in_a_lie: str = ""
    condition: Any = None  # cel.Expression


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Rules in their order, and what they were read from: file name and sha256."""

    rules: tuple[Rule, ...]
    sources: tuple[tuple[str, str], ...]

    def __add__(self, other: Ruleset) -> Ruleset:
        known = {rule.id for rule in self.rules}
        for rule in other.rules:
            if rule.id in known:
                raise RulesMalformed(Path(other.sources[0][0]), "rules", f"there is a rule {rule.id!r} already")
        return Ruleset(self.rules + other.rules, self.sources + other.sources)


@cache
def _environment(stream: str) -> cel.Env:
    from cel_expr_python import cel

    types = {
        "string": cel.Type.STRING,
        "bool": cel.Type.BOOL,
        "int": cel.Type.INT,
        "list(string)": cel.Type.List(cel.Type.STRING),
    }
    declared = {**STREAMS[stream], **VARIABLES}
    return cel.NewEnv(variables={name: types[kind] for name, kind in declared.items()})


def _condition(table: Table, stream: str) -> tuple[str, Any]:
    """The text and the compiled form of a rule's `when`; raises with what CEL's own checker says."""
    text = table.text("when") or ""
    if not text:
        return "", None
    from cel_expr_python import cel

    try:
        expression = _environment(stream).compile(text)
    except RuntimeError as failure:
        said = str(failure).splitlines()[0].rpartition("<input>:")[2]
        raise table.wrong("when", f"is no condition over {stream} (at {said})") from None
    if expression.return_type() != cel.Type.BOOL:
        raise table.wrong("when", f"must be true or false, is of type {expression.return_type().name()}")
    return text, expression


def _rule(table: Table) -> Rule:
    severity, over = table.choice("severity", SEVERITIES), table.choice("over", tuple(STREAMS))
    if severity is None:
        raise table.wrong("severity", f"is required, one of {', '.join(SEVERITIES)}")
    if over is None:
        raise table.wrong("over", f"is required, one of {', '.join(STREAMS)}")
    when, condition = _condition(table, over)
    rule = Rule(
        id=table.need_text("id"),
        severity=severity,
        over=over,
        means=table.need_text("means"),
        text=table.need_text("text"),
        paths=table.texts("paths"),
        unless=table.texts("unless"),
        when=when,
        in_a_lie=table.choice("in_a_lie", SEVERITIES) or "",
        condition=condition,
    )
    try:
        nothing: dict[str, str] = dict.fromkeys(GLOBS, any_of([]))
        compiled(rule.paths, nothing)
        compiled(rule.unless, nothing)
    except (BadPattern, ValueError) as failure:
        raise table.wrong("paths", str(failure)) from None
    if not rule.paths and not rule.when and over != "process":
        raise table.wrong("", "needs paths or when: without both it is about everything")
    table.finish()
    return rule


def load_rules(path: Path) -> Ruleset:
    """Read one rule file. Raises RulesMalformed with file, line and key."""
    root = Table.of_schema(path, RulesMalformed, SCHEMA)
    rules = tuple(_rule(table) for table in root.tables("rules"))
    root.finish()
    ids = [rule.id for rule in rules]
    if doubled := next((one for one in ids if ids.count(one) > 1), None):
        raise root.wrong("rules", f"two rules are called {doubled!r}")
    return Ruleset(rules, ((path.name, hashlib.sha256(path.read_bytes()).hexdigest()),))


@cache
def shipped() -> Ruleset:
    """The rules that come with Caisson."""
    return load_rules(Path(str(files("caisson_runner.verify.findings").joinpath("rules.toml"))))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _holds(rule: Rule, subject: Subject, variables: Mapping[str, Any]) -> bool:
    if rule.condition is None:
        return True
    data = {**variables, **subject.fields}
    try:
        value = rule.condition.eval(data=data).plain_value()
    except RuntimeError:  # a string that is no UTF-8, which the runtime cannot take: the rule is asked all the same
        value = rule.condition.eval(data={name: _plain(entry) for name, entry in data.items()}).plain_value()
    return value is True  # an error in a condition (an index beyond a list) is not true


def ask(rule: Rule, gathered: Gathered) -> Finding | None:
    """One rule of one run."""
    wanted, spared = compiled(rule.paths, gathered.globs), compiled(rule.unless, gathered.globs)
    hits = [
        subject
        for subject in gathered.streams.get(rule.over, ())
        if (wanted is None or wanted.fullmatch(subject.path))
        and (spared is None or not spared.fullmatch(subject.path))
        and _holds(rule, subject, gathered.variables)
    ]
    if not hits:
        return None
    labels = [hit.shown for hit in hits if hit.label or hit.path][:MAX_SHOWN]
    more = sum(1 for hit in hits if hit.label or hit.path) - 3
    names = ", ".join(labels[:3]) + (f" and {more} more" if more > 0 else "")
    seqs = sorted({seq for hit in hits for seq in hit.seqs})
    placed = [hit for hit in hits if hit.path.startswith("/") and rule.over in ("write", "reach", "call")]
    paths = tuple(hit.shown for hit in placed[:MAX_POINTERS])
    severity = rule.in_a_lie if rule.in_a_lie and gathered.variables["run.lie"] else rule.severity
    text = rule.text.replace("{names}", names).replace("{count}", str(len(hits)))
    text = text.replace("{reason}", gathered.texts.get(rule.id, ""))
    count = max(len(hits) if labels else 0, len(seqs))
    gate = sorted({seq for hit in hits for seq in hit.gate})[:MAX_POINTERS]
    return Finding(rule.id, severity, text, tuple(seqs[:MAX_POINTERS]), paths, count, tuple(gate))


def findings(gathered: Gathered, rules: Ruleset | None = None) -> tuple[Finding, ...]:
    """Every rule's finding, the disqualifying ones first."""
    found = [finding for rule in (rules or shipped()).rules if (finding := ask(rule, gathered)) is not None]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))
