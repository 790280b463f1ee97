"""The registers of routes, ``scenarios/routes/{egress,local}/routes.toml``: what there is, and what must hold of it.

["ip-tcp-literal"]
group = "B1"                      # part of the catalogue
cases = ["a", "b"]                # each runs alone, as <id>/<case>; without: one run, named <id>
networks = ["none", "gate"]       # which boxes it is for; all that there are when not said (local ones: none)
engines = ["docker"]              # only these; all when not said
quick = true                      # also in the quick form
control = true                    # must be performed and recorded everywhere, or the rig is broken
sibling = true                    # its other half runs first, in a box of its own
blocked = "no-route|no-listener"  # what must stop it in a box without network; several with "|"
gate = "gate:ip_literal"          # the same for a box behind the gate; "passes" where the gate lets it by on purpose
silent = { strace = "why" }       # witnesses that cannot record it; in a box behind the gate the gate's record counts
open = { docker = "why" }          # with this engine it reaches, and docs/threat-model.md says so
policy = "allow-web"              # of the gate; the world's usual one when not said
documented = "why"                # there is no script: the page says what is known
case.b = { blocked = "seccomp" }  # where one case differs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_runner import registers
from caisson_runner.redteam.errors import RegisterInvalid

FOLDERS: Final = ("egress", "local")
NETWORKS: Final = ("none", "gate")
ENGINES: Final = ("local-root", "local-rootless", "docker")
_KEYS: Final = frozenset(
    {
        "group", "cases", "networks", "engines", "quick", "control", "sibling", "blocked", "gate", "silent", "open",
        "policy", "documented", "case",
    }
)  # fmt: skip
_PER_CASE: Final = frozenset({"networks", "engines", "blocked", "gate", "silent", "open", "policy", "quick"})


@dataclass(frozen=True, slots=True)
class Route:
    """One case of one route."""

    id: str
    case: str
    script: Path
    group: str
    networks: tuple[str, ...]
    engines: tuple[str, ...]
    quick: bool
    control: bool
    sibling: bool
    blocked: Mapping[str, frozenset[str]]
    """What may stop it, by network."""
    silent: Mapping[str, str]
    """Witness to the reason why it cannot record this."""
    open: Mapping[str, str]
    """Engine to the reason why it is let be."""
    policy: str
    documented: str

    @property
    def name(self) -> str:
        return f"{self.id}/{self.case}" if self.case else self.id


def load_register(folder: Path) -> list[Route]:
    """Every case of every route below ``folder``, in the registers' order. RegisterInvalid names what is wrong."""
    routes: list[Route] = []
    for name in FOLDERS:
        register = folder / name / registers.REGISTER
        table = registers.read_register(register, RegisterInvalid)
        for id, entry in table.items():
            routes += _cases(register, id, entry)
        registers.all_registered(register, table, RegisterInvalid)
    return routes


def select(routes: Sequence[Route], globs: Sequence[str], quick: bool) -> list[Route]:
    """See `registers.select`."""
    return registers.select(routes, globs, quick, RegisterInvalid)


def _cases(register: Path, id: str, entry: Any) -> list[Route]:
    where = f"{register}: {id}"
    registers.known_keys(where, entry, _KEYS, RegisterInvalid)
    script = register.parent / f"{id}.py"
    if script.is_file() == ("documented" in entry):
        raise RegisterInvalid(f"{where}: it needs a script {script.name}, or `documented`, and not both")
    cases = registers.cases_of(where, entry, RegisterInvalid)
    return [_case(where, id, case, script, entry, special) for case, special in cases]


def _case(where: str, id: str, case: str, script: Path, entry: Mapping[str, Any], special: Mapping[str, Any]) -> Route:
    if unknown := special.keys() - _PER_CASE:
        raise RegisterInvalid(f"{where}: case.{case}.{min(unknown)} is no key of a case")
    said = {**entry, **special}
    usual = NETWORKS if script.parent.name == "egress" else ("none",)
    networks, engines = tuple(said.get("networks", usual)), tuple(said.get("engines", ENGINES))
    for words, known in ((networks, NETWORKS), (engines, ENGINES)):
        if stray := set(words) - set(known):
            raise RegisterInvalid(f"{where}: {min(stray)!r} is none of {', '.join(known)}")
    blocked = {
        "none": _words(said.get("blocked", "")),
        "gate": _words(said.get("gate", said.get("blocked", ""))),
    }
    for network in networks:
        if not blocked[network] and "documented" not in said:
            raise RegisterInvalid(f"{where}: nothing says what stops {case or 'it'} with network {network}")
    return Route(
        id=id,
        case=case,
        script=script,
        group=str(said.get("group", "")),
        networks=networks,
        engines=engines,
        quick=bool(said.get("quick", False)),
        control=bool(said.get("control", False)),
        sibling=bool(said.get("sibling", False)),
        blocked=blocked,
        silent=_texts(said.get("silent", {})),
        open=_texts(said.get("open", {})),
        policy=str(said.get("policy", "")),
        documented=str(said.get("documented", "")),
    )


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(why) for name, why in said.items()}


def _words(said: str) -> frozenset[str]:
    return frozenset(word for word in said.split("|") if word)
