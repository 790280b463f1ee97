"""The registers of routes below ``scenarios/routes``: what the comparison's and the red team's have in common.

Every function raises the error class it is given, with one line that names the register and what is wrong in it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from caisson_runner.errors import CaissonError

REGISTER: Final = "routes.toml"


class Case(Protocol):
    """One case of one route, whatever else its register says of it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def quick(self) -> bool: ...


_C = TypeVar("_C", bound=Case)


def read_register(register: Path, wrong: type[CaissonError]) -> dict[str, Any]:
    """The entries of a register by route."""
    try:
        with register.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise wrong(f"{register}: {problem}") from None


def all_registered(register: Path, table: Mapping[str, Any], wrong: type[CaissonError]) -> None:
    """Every script beside a register is in it."""
    if unregistered := {path.stem for path in register.parent.glob("*.py")} - table.keys():
        raise wrong(f"{register}: {min(unregistered)}.py is not registered: give it an entry")


def known_keys(where: str, entry: Any, keys: Collection[str], wrong: type[CaissonError]) -> None:
    """An entry is a table of these keys."""
    if not isinstance(entry, dict):
        raise wrong(f"{where} is no table")
    if unknown := entry.keys() - keys:
        raise wrong(f"{where}: {min(unknown)} is no key; there are {', '.join(sorted(keys))}")


def cases_of(where: str, entry: Mapping[str, Any], wrong: type[CaissonError]) -> list[tuple[str, Mapping[str, Any]]]:
    """The cases of an entry, each with what is said of it alone; a route without cases is one without a name."""
    cases, special = entry.get("cases", [""]), entry.get("case", {})
    if stray := special.keys() - set(cases):
        raise wrong(f"{where}: case.{min(stray)} is not among its cases")
    return [(case, special.get(case, {})) for case in cases]


def select(routes: Sequence[_C], globs: Sequence[str], quick: bool, wrong: type[CaissonError]) -> list[_C]:
    """The routes whose name or id matches one of the globs; without globs the quick ones, or all."""
    if globs:
        chosen = [r for r in routes if any(fnmatchcase(r.name, g) or fnmatchcase(r.id, g) for g in globs)]
        if not chosen:
            raise wrong(f"no route matches {' '.join(globs)}")
        return chosen
    return [route for route in routes if route.quick or not quick]
