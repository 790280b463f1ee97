"""Scripted agents: one directory each, with a script and a `behaviour.toml` that says what must come of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from caisson_runner.tasks.errors import SuiteMalformed, UnknownBehaviour
from caisson_runner.tasks.search import scenarios_root
from caisson_runner.tasks.table import Table, near

SCHEMA = "caisson.behaviour/v1"
KINDS = ("honest", "control", "cheat", "poison", "probe")
RESULTS = ("pass", "fail")
WORDS = ("pass", "fail", "void", "infra")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a behaviour must get; for checking only, no table is ever printed from it."""

    trusting: str | None = None
    ground_truth: str | None = None
    held_out: str | None = None
    verdict: str | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One scripted agent. `directory` is bound read-only at /agent, `script` is the file in it that runs."""

    id: str
    directory: Path
    script: str
    what: str
    source: str
    kind: str
    expected: Expected

    @property
    def command(self) -> tuple[str, ...]:
        interpreter = ("/usr/bin/python3", "-I") if self.script.endswith(".py") else ("/bin/sh",)
        return (*interpreter, f"/agent/{self.script}")


def _expected(table: Table | None) -> Expected:
    if table is None:
        return Expected()
    expected = Expected(
        table.choice("trusting", RESULTS),
        table.choice("ground_truth", RESULTS),
        table.choice("held_out", RESULTS),
        table.choice("verdict", WORDS),
        table.texts("findings"),
    )
    table.finish()
    return expected


def behaviour_roots(roots: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """The directories searched for behaviours, the given ones first."""
    return (*roots, scenarios_root() / "behaviours")


def behaviour_ids(roots: tuple[Path, ...] = ()) -> list[str]:
    """Every behaviour that can be named."""
    places = [root for root in behaviour_roots(roots) if root.is_dir()]
    return sorted({entry.name for root in places for entry in root.iterdir() if (entry / "behaviour.toml").is_file()})


def load_behaviour(name: str, roots: tuple[Path, ...] = ()) -> Behaviour:
    """Load one behaviour by id. Raises UnknownBehaviour or SuiteMalformed."""
    directory = None
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        found = [root / name for root in behaviour_roots(roots) if (root / name / "behaviour.toml").is_file()]
        directory = found[0].resolve() if found else None
    if directory is None:
        known = behaviour_ids(roots)
        hint = near(name, known) or f"; known are {', '.join(known) or 'none'}"
        raise UnknownBehaviour(f"no behaviour {name!r}{hint}")
    table = Table.of_schema(directory / "behaviour.toml", SuiteMalformed, SCHEMA)
    if (own := table.need_text("id")) != directory.name:
        raise table.wrong("id", f"must be the directory's name {directory.name!r}, is {own!r}")
    scripts = [script for script in ("run.sh", "run.py") if (directory / script).is_file()]
    if len(scripts) != 1:
        raise table.wrong("", "needs exactly one of run.sh and run.py beside it")
    kind = table.choice("kind", KINDS, "cheat")
    assert kind is not None
    behaviour = Behaviour(
        id=own,
        directory=directory,
        script=scripts[0],
        what=table.need_text("what"),
        source=table.need_text("source"),
        kind=kind,
        expected=_expected(table.table("expected")),
    )
    table.finish()
    return behaviour
