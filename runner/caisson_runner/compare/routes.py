"""The register of routes, ``scenarios/routes/witness/routes.toml``: what there is, what it needs, what is expected.

["open-deleted"]
group = "A2"                       # part of the catalogue
cases = ["unlinked", "memfd"]      # each runs alone, as <id>/<case>; without: one run, named <id>
allow = ["io_uring"]               # system call groups its box must allow (boxes/seccomp.py, REASONS)
quick = true                       # also in the quick form
control = true                     # must be seen by every witness but polling, or the rig is broken
ebpf = "seen"                      # seen | partly | missed | inapplicable; several with "|" where chance decides
strace = "partly"
polling = "missed"
why = { strace = "the name is read before the kernel reads it" }
case.memfd = { strace = "missed", why = { strace = "…" } }    # where one case differs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_runner import registers
from caisson_runner.compare.errors import RoutesInvalid

WORDS: Final = frozenset({"seen", "partly", "missed", "inapplicable"})
WITNESSES: Final = ("ebpf", "strace", "polling")
CHANCE: Final = "chance"
"""Said of polling: seen, partly or missed, as the moment has it."""
_KEYS: Final = frozenset({"group", "cases", "allow", "quick", "control", "case", "why", "late", *WITNESSES})


@dataclass(frozen=True, slots=True)
class Expected:
    """The results that are right for one witness, and why it is not simply ``seen``."""

    words: frozenset[str]
    why: str = ""

    def __str__(self) -> str:
        return "|".join(word for word in ("seen", "partly", "missed", "inapplicable") if word in self.words)


@dataclass(frozen=True, slots=True)
class Route:
    """One case of one route."""

    id: str
    case: str
    script: Path
    group: str
    allow: tuple[str, ...]
    quick: bool
    control: bool
    late: bool
    """Starts unwatched and asks to be admitted in the middle."""
    expected: Mapping[str, Expected]

    @property
    def name(self) -> str:
        return f"{self.id}/{self.case}" if self.case else self.id


def load_routes(folder: Path) -> list[Route]:
    """Every case of every registered route, in the register's order. RoutesInvalid names what is wrong."""
    register = folder / registers.REGISTER
    table = registers.read_register(register, RoutesInvalid)
    routes = [route for id, entry in table.items() for route in _cases(folder, id, entry)]
    registers.all_registered(register, table, RoutesInvalid)
    return routes


def select(routes: Sequence[Route], globs: Sequence[str], quick: bool) -> list[Route]:
    """See `registers.select`."""
    return registers.select(routes, globs, quick, RoutesInvalid)


def _cases(folder: Path, id: str, entry: Any) -> list[Route]:
    where = f"{folder / registers.REGISTER}: {id}"
    registers.known_keys(where, entry, _KEYS, RoutesInvalid)
    script = folder / f"{id}.py"
    if not script.is_file():
        raise RoutesInvalid(f"{where}: no script {script.name}")
    return [
        Route(
            id, case, script, str(entry.get("group", "")), tuple(entry.get("allow", ())),
            bool(entry.get("quick", False)), bool(entry.get("control", False)), bool(entry.get("late", False)),
            {name: _expected(where, name, entry, special) for name in WITNESSES},
        )
        for case, special in registers.cases_of(where, entry, RoutesInvalid)
    ]  # fmt: skip


def _expected(where: str, witness: str, entry: Mapping[str, Any], special: Mapping[str, Any]) -> Expected:
    said = special.get(witness, entry.get(witness))
    if said is None:
        raise RoutesInvalid(f"{where}: nothing is said of {witness}")
    if said == CHANCE:
        return Expected(frozenset(("seen", "partly", "missed")), "whether a poll falls into the right moment is chance")
    words = frozenset(str(said).split("|"))
    if not words or words - WORDS:
        raise RoutesInvalid(f"{where}: {witness} = {said!r}; the words are {', '.join(sorted(WORDS))}")
    why = special.get("why", {}).get(witness) or entry.get("why", {}).get(witness, "")
    if words != {"seen"} and not why and witness != "polling":
        raise RoutesInvalid(f"{where}: {witness} is {said} without a reason: add why.{witness}")
    return Expected(words, str(why))
