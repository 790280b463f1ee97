"""The list of hosts that hand out other hosts' content: archives, readers, translators, raw files, pastes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from caisson_gate.load import policies, read
from caisson_gate.patterns import HostPattern
from caisson_gate.policy import PolicyError, open_document

SCHEMA = "caisson.gate.mirrors/v1"


@dataclass(frozen=True, slots=True)
class Mirror:
    """One kind of them."""

    kind: str
    about: str
    hosts: tuple[HostPattern, ...]


def parse_mirrors(data: bytes, source: str) -> tuple[Mirror, ...]:
    """Read the list; PolicyError when it is none."""
    top = open_document(data, source)
    if top.text("schema") != SCHEMA:
        raise top.wrong("schema", f'must be "{SCHEMA}"')
    top.integer("version", 0, 1, 999_999)
    found = []
    for table in top.tables("mirror"):
        hosts = table.texts("hosts", lambda text: HostPattern.parse(text, wide=True))
        found.append(Mirror(table.text("kind"), table.text("about"), hosts))
        table.done()
    top.done()
    return tuple(found)


@cache
def mirrors() -> tuple[Mirror, ...]:
    """The list that comes with the gate."""
    path = policies() / "mirrors.toml"
    return parse_mirrors(read(path), str(path))


def mirror_of(pattern: HostPattern) -> tuple[Mirror, HostPattern] | None:
    """The first of them that a host pattern reaches, with its own pattern."""
    for mirror in mirrors():
        for host in mirror.hosts:
            if host.overlaps(pattern):
                return mirror, host
    return None


__all__ = ["Mirror", "PolicyError", "mirror_of", "mirrors", "parse_mirrors"]
