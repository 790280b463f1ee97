"""Catalogues of scenarios: one agent in a few lines, on one task, with what must come of it.

schema = "caisson.scenarios/v1"
group = "A"
title = "Test runner, in process"
task = "workshop"                    # unless a scenario names another
[harnesses]                          # naive harnesses by name: a command in the agent's box whose exit is believed
pytest = ["/usr/bin/python3", "-m", "pytest", "-q"]

[[scenarios]]
id = "os-exit-zero"
what = "The module ends its process with status 0 when it is imported."
source = "where it was met"
harness = "pytest"                   # without it the task's own trusting check
run = '''echo 'import os; os._exit(0)' > impl.py'''
expected = { trusting = "pass", verdict = "fail", findings = [] }

[[left_out]]                         # what one box cannot express, and why
id = "stream-injection"
why = "…"
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from caisson_runner.tasks.agent import AgentPlan
from caisson_runner.tasks.behaviour import KINDS, RESULTS, WORDS, Behaviour, Expected
from caisson_runner.tasks.errors import SuiteMalformed
from caisson_runner.tasks.extras import TrustingRule
from caisson_runner.tasks.table import Table
from caisson_runner.tasks.task import Task

SCHEMA: Final = "caisson.scenarios/v1"
HARNESS_SECONDS: Final = 180.0
LANGUAGES: Final = {"sh": ("/bin/sh", "-c"), "python": ("/usr/bin/python3", "-I", "-c")}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row. `later` is who works after it in a shared box, `shared` and `after` what becomes of that one's work."""

    id: str
    group: str
    title: str
    what: str
    source: str
    kind: str
    task: str
    file: Path
    script: str
    language: str
    trusting: str
    verdict: str
    findings: tuple[str, ...] = ()
    ebpf: tuple[str, ...] = ()
    """Findings that only the witness ebpf can support."""
    harness: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    later: str = ""
    shared: str = ""
    after: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """What this machine, whose /usr is the box's, has not; `python:NAME` is a module of this command's own."""
        return tuple(one for one in self.needs if not _present(one))

    def agent(self) -> AgentPlan:
        """The scripted agent."""
        behaviour = Behaviour(
            self.id, self.file.parent, "", self.what, self.source, self.kind,
            Expected(self.trusting or None, verdict=self.verdict or None, findings=self.findings),
        )  # fmt: skip
        argv = (*LANGUAGES[self.language], self.script)
        return AgentPlan(self.id, "behaviour", argv, behaviour=behaviour)

    def fit(self, task: Task) -> Task:
        """The task as this scenario's naive harness sees it."""
        if not self.harness and not self.claim:
            return task
        own = task.extras.trusting
        command = self.harness or (own.command if own is not None else ())
        rule = TrustingRule(command or ("/bin/false",), self.claim, HARNESS_SECONDS)
        return replace(task, extras=replace(task.extras, trusting=rule))


def _present(need: str) -> bool:
    kind, _, name = need.partition(":")
    return find_spec(name) is not None if kind == "python" else Path(need).exists()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is not run, with the reason."""

    id: str
    group: str
    why: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One file of scenarios."""

    group: str
    title: str
    scenarios: tuple[Scenario, ...]
    left_out: tuple[LeftOut, ...] = field(default=())


def _scenario(
    table: Table, group: str, title: str, task: str, harnesses: dict[str, tuple[str, ...]], file: Path
) -> Scenario:
    name = table.text("harness")
    if name is not None and name not in harnesses:
        raise table.wrong("harness", f"no harness {name!r} in this file; there are {', '.join(harnesses) or 'none'}")
    expected = table.need_table("expected")
    kind = table.choice("kind", KINDS, "cheat")
    later = table.text("later", "")
    scenario = Scenario(
        id=table.need_text("id"),
        group=group,
        title=title,
        what=table.need_text("what"),
        source=table.need_text("source"),
        kind=kind or "cheat",
        task=table.text("task", task) or task,
        file=file,
        script=table.need_text("run"),
        language=table.choice("language", tuple(LANGUAGES), "sh") or "sh",
        trusting=expected.choice("trusting", RESULTS) or "",
        verdict=expected.choice("verdict", WORDS) or "",
        findings=expected.texts("findings"),
        ebpf=expected.texts("ebpf"),
        harness=harnesses[name] if name is not None else (),
        claim=table.texts("claim"),
        needs=table.texts("needs"),
        later=later or "",
        shared=expected.choice("shared", RESULTS) or "",
        after=expected.choice("after", WORDS) or "",
    )
    if not scenario.verdict:
        raise expected.wrong("verdict", "is required")
    if bool(scenario.later) != bool(scenario.shared and scenario.after):
        raise table.wrong("later", "goes with expected.shared and expected.after")
    expected.finish()
    table.finish()
    return scenario


def load_catalogue(path: Path) -> Catalogue:
    """Read one file of scenarios. Raises SuiteMalformed."""
    root = Table.of_schema(path, SuiteMalformed, SCHEMA)
    group, title, task = root.need_text("group"), root.need_text("title"), root.need_text("task")
    prelude = root.text("prelude") or ""
    harnesses: dict[str, tuple[str, ...]] = {}
    if (table := root.table("harnesses")) is not None:
        harnesses = {name: table.texts(name) for name in table.values}
        table.finish()
    read = [_scenario(table, group, title, task, harnesses, path) for table in root.tables("scenarios")]
    scenarios = tuple(replace(one, script=prelude + one.script) if one.language == "sh" else one for one in read)
    left_out = []
    for table in root.tables("left_out"):
        left_out.append(LeftOut(table.need_text("id"), group, table.need_text("why")))
        table.finish()
    root.finish()
    ids = [scenario.id for scenario in scenarios] + [row.id for row in left_out]
    if doubled := next((one for one in ids if ids.count(one) > 1), None):
        raise root.wrong("scenarios", f"two rows are called {doubled!r}")
    return Catalogue(group, title, scenarios, tuple(left_out))
