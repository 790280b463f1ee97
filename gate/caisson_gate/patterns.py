"""Host patterns of a policy, and the index that finds the rules of a host without walking through all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from caisson_gate.names import Address, Host, MalformedName, Network, parse_host
from caisson_gate.paths import Glob
from caisson_gate.suffixes import is_public_suffix

REMEMBERED = 4096
"""Hosts whose rules an index keeps at hand."""
MOST_NEAR = 1_000_000
"""Entries that the look-up by first segment may have for one host; with more of them it is done without."""
FEW = 8
"""So many rules of one host are gone through as they are; more are looked up by the first segment of the path."""


class Depth(Enum):
    """Which names a pattern means."""

    EXACT = ""
    BELOW = "*."
    """One or more labels before it, not the name itself."""
    WITHIN = "**."
    """The name itself and everything below it."""


class BadPattern(ValueError):
    """Not a pattern; the message completes "host pattern …"."""


@dataclass(frozen=True, slots=True)
class HostPattern:
    """`a.b`, `*.b` or `**.b`, as a tuple of labels."""

    labels: tuple[str, ...]
    depth: Depth

    @property
    def text(self) -> str:
        """As it is written in a policy."""
        return self.depth.value + ".".join(self.labels)

    @classmethod
    def parse(cls, text: str, wide: bool = False) -> HostPattern:
        """Raises BadPattern. ``wide`` patterns may mean everybody below a public suffix: for denials."""
        depth, rest = Depth.EXACT, text
        for candidate in (Depth.WITHIN, Depth.BELOW):
            if text.startswith(candidate.value):
                depth, rest = candidate, text[len(candidate.value) :]
                break
        if not text:
            raise BadPattern("is empty")
        if "://" in rest or "/" in rest:
            raise BadPattern("holds a scheme or a path; write the host alone and put paths into `paths`")
        if "*" in rest:
            raise BadPattern("has a * elsewhere than as the first label; write *.name or **.name")
        try:
            host = parse_host(rest.encode())
        except MalformedName as malformed:
            if ":" in rest:
                raise BadPattern("holds a port; put ports into `ports`") from None
            raise BadPattern(f"is no host name: {malformed}") from None
        if host.address is not None:
            raise BadPattern("is an address; put it into `addresses`")
        if rest != host.text:
            raise BadPattern(f"is not in canonical form; write {depth.value}{host.text}")
        if len(host.labels) == 1 and not (wide and depth is not Depth.EXACT):
            raise BadPattern("is a single label; write the full name")
        if depth is not Depth.EXACT and not wide and is_public_suffix(host.labels):
            raise BadPattern("is a public suffix, below which anybody can have a name; name the hosts")
        return cls(host.labels, depth)

    def matches(self, host: Host) -> bool:
        """Whether the name is meant; never an address."""
        if host.labels == self.labels:
            return self.depth is not Depth.BELOW
        return self.depth is not Depth.EXACT and self.labels in host.parents

    def overlaps(self, other: HostPattern) -> bool:
        """Whether one name can match both."""
        shorter, longer = sorted((self, other), key=lambda one: len(one.labels))
        if longer.labels[len(longer.labels) - len(shorter.labels) :] != shorter.labels:
            return False
        if len(shorter.labels) < len(longer.labels):
            return shorter.depth is not Depth.EXACT
        depths = {shorter.depth, longer.depth}
        return depths != {Depth.EXACT, Depth.BELOW}


class Ruled(Protocol):
    """What an index holds: anything with hosts and addresses."""

    @property
    def hosts(self) -> tuple[HostPattern, ...]:
        """Patterns of names."""
        ...

    @property
    def addresses(self) -> tuple[Network, ...]:
        """Networks of literals."""
        ...

    @property
    def paths(self) -> tuple[Glob, ...]:
        """Globs of paths."""
        ...


R = TypeVar("R", bound=Ruled)


@dataclass(slots=True)
class Index(Generic[R]):
    """Rules by host, in the order of the file."""

    names: dict[tuple[str, ...], list[tuple[int, Depth, R]]] = field(default_factory=dict)
    networks: list[tuple[int, Network, R]] = field(default_factory=list)
    _known: dict[str, tuple[R, ...]] = field(default_factory=dict)
    _by_segment: dict[str, dict[bytes, tuple[R, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Iterable[R]) -> Index[R]:
        """The index of these rules."""
        index = cls()
        for at, rule in enumerate(rules):
            for pattern in rule.hosts:
                index.names.setdefault(pattern.labels, []).append((at, pattern.depth, rule))
            index.networks += [(at, network, rule) for network in rule.addresses]
        return index

    def rules(self, host: Host) -> tuple[R, ...]:
        """Every rule that means this host, in order."""
        known = self._known.get(host.text)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[host.text] = self._find(host)
        return known

    def near(self, host: Host, path: bytes) -> tuple[R, ...]:
        """Of the rules of this host, in order, at least those that a path of theirs matches."""
        rules = self.rules(host)
        if len(rules) <= FEW:
            return rules
        segments = self._by_segment.get(host.text)
        if segments is None:
            if len(self._by_segment) >= REMEMBERED:
                self._by_segment.clear()
            segments = self._by_segment[host.text] = _by_first_segment(rules)
        found = segments.get(path.split(b"/", 2)[1].lower())
        return segments[_OTHERS] if found is None else found

    def _find(self, host: Host) -> tuple[R, ...]:
        found: dict[int, R] = {}
        if host.address is not None:
            found = {at: rule for at, network, rule in self.networks if covers(network, host.address)}
        else:
            for at, depth, rule in self.names.get(host.labels, ()):
                if depth is not Depth.BELOW:
                    found[at] = rule
            for parent in host.parents:
                for at, depth, rule in self.names.get(parent, ()):
                    if depth is not Depth.EXACT:
                        found[at] = rule
        return tuple(found[at] for at in sorted(found))


_OTHERS: Final = b"/"
"""In place of a first segment, which holds no slash: every other one."""


def _by_first_segment(rules: tuple[R, ...]) -> dict[bytes, tuple[R, ...]]:
    """Rules by the first segment that their paths begin with; one with a star may match any."""
    firsts = [{glob.segments[0].lower() for glob in rule.paths} for rule in rules]
    anywhere = [any(b"*" in first for first in found) for found in firsts]
    at: dict[bytes, list[int]] = {}
    for number, found in enumerate(firsts):
        for first in found:
            at.setdefault(first, []).append(number)
    wide = [number for number, any_path in enumerate(anywhere) if any_path]
    if len(at) * len(wide) > MOST_NEAR:
        return {_OTHERS: rules}
    made = {first: sorted({*numbers, *wide}) for first, numbers in at.items()}
    made[_OTHERS] = wide
    return {first: tuple(rules[number] for number in numbers) for first, numbers in made.items()}


def covers(network: Network, address: Address) -> bool:
    """Whether the address is in it; never across versions."""
    return network.version == address.version and address in network
