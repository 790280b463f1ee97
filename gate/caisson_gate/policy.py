"""A gate policy: what a box may reach. Read strictly from TOML, schema `caisson.gate/v1`.

Whatever is wrong with the file raises PolicyError, and then the box has no network. There is no lenient reading.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from caisson_gate.document import SCHEMA, canonical
from caisson_gate.errors import PolicyError
from caisson_gate.names import ALWAYS_DENIED, OPTIONAL_CLASSES, address_classes, classes_of, readings
from caisson_gate.patterns import Index, covers
from caisson_gate.rules import PHASES, Phase, Rule, read_allow, read_deny, read_host, read_phases
from caisson_gate.schema import Document, Reader

__all__ = ["Policy", "PolicyError", "closed", "parse", "parse_bundle"]

BUNDLE_SCHEMA: Final = "caisson.gate.bundle/v1"
MAX_BYTES: Final = 1 << 20
MAX_RULES: Final = 10_000
MODES: Final = ("no-network", "allowlist", "denylist", "record", "public")
SHORT_RULE: Final = "allowed_hosts"

Bundles = Callable[[str], Sequence[Rule]]
"""Finds the rules of a named bundle; raises ValueError, whose message completes "bundle NAME …"."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The rules that count in one phase."""

    open: bool
    allow: Index[Rule]
    deny: Index[Rule]


@dataclass(frozen=True)
class Policy:
    """What is decided by. Every event names it by ``sha256``: the digest of ``canonical``, with bundles expanded."""

    network_mode: str = "no-network"
    """"no-network", "allowlist", "denylist" or "record"."""
    action: str = "enforce"
    deny_status: int = 403
    bundles: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ("agent",)
    """In every other phase there is no network."""
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    cutoff: datetime | None = None
    undated: str = "deny"
    deadline_s: float | None = None
    dns_answer: str = "allowed"
    max_qname_entropy_bits: int = 160
    deny_classes: frozenset[str] = frozenset({"private"})
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def tables(self) -> Mapping[str, Tables]:
        """By phase, for the decision."""
        return {
            phase: Tables(
                self.network_mode != "no-network" and phase in self.phases,
                Index.of(rule for rule in self.allow if phase in rule.phases),
                Index.of(rule for rule in self.deny if phase in rule.phases),
            )
            for phase in PHASES
        }

    @cached_property
    def refused_classes(self) -> frozenset[str]:
        """Of addresses: those always denied, and those this policy denies."""
        return ALWAYS_DENIED | self.deny_classes

    def refuses(self, address: str, phase: str) -> tuple[str, str] | None:
        """Whether an address may not be dialled, also for an allowed name: the rule's id or "hard", and why.

        It is refused by its class, or by a denial of addresses that asks for nothing else; either way also by an IPv4
        address inside it. What is no address is refused.
        """
        classes = classes_of(address)
        if classes is None:
            return "hard", "is no address"
        if refused := classes & self.refused_classes:
            return "hard", f"is {' and '.join(sorted(refused))}"
        tables = self.tables.get(phase)
        if tables is None or not tables.deny.networks:
            return None
        for _, network, rule in tables.deny.networks:
            alone = rule.whole and rule.methods is None and rule.ports is None
            if alone and any(covers(network, reading) for reading in readings(address)):
                return rule.id, rule.why or f"is denied by {network}"
        return None

    @cached_property
    def canonical(self) -> bytes:
        """The whole policy as canonical JSON: equal policies have equal bytes."""
        return canonical(self)

    @cached_property
    def sha256(self) -> str:
        """Of ``canonical``."""
        return hashlib.sha256(self.canonical).hexdigest()


def closed() -> Policy:
    """The policy of a box without network, which is also what a broken file means."""
    return Policy()


def parse(data: bytes, source: str = "policy", bundles: Bundles | None = None) -> Policy:
    """Read a policy; pure. Raises PolicyError, with file, line and key, for what it does not know or cannot enforce."""
    return _read(open_document(data, source), bundles)


def parse_bundle(data: bytes, source: str) -> tuple[int, tuple[Rule, ...]]:
    """A bundle's file: its version, and allow rules whose ids begin with the bundle's name. Pure."""
    top = open_document(data, source)
    if top.text("schema") != BUNDLE_SCHEMA:
        raise top.wrong("schema", f'must be "{BUNDLE_SCHEMA}"')
    version = top.integer("version", 0, 1, 999_999)
    top.text("about")
    rules = _rules(top, "allow", read_allow, PHASES)
    top.done()
    return version, rules


def open_document(data: bytes, source: str) -> Reader:
    """The table of a TOML text, to be read strictly; PolicyError when it is none or too large."""
    if len(data) > MAX_BYTES:
        raise PolicyError(source, f"is larger than {MAX_BYTES} bytes")
    if not data.strip():
        raise PolicyError(source, f'is empty; write at least schema = "{SCHEMA}"')
    try:
        text = data.decode("utf-8")
        return Reader(Document(source, text), tomllib.loads(text))
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise PolicyError(source, "is not UTF-8; save it as UTF-8", line) from None
    except (ValueError, RecursionError) as problem:
        raise PolicyError(source, f"is no TOML: {' '.join(str(problem).split())[:200]}") from None


def _read(top: Reader, bundles: Bundles | None) -> Policy:
    if top.text("schema") != SCHEMA:
        raise top.wrong("schema", f'must be "{SCHEMA}"' + ("" if top.has("schema") else " and is missing"))
    warnings: list[str] = []
    mode = top.word("network_mode", MODES, "no-network")
    if mode == "public":
        warnings.append('network_mode = "public" is taken as "record": everything is let through and recorded')
        mode = "record"
    action = top.word("action", ("enforce", "report"), "enforce")
    if action == "report":
        if mode == "no-network":
            raise top.wrong("action", '"report" needs a network_mode that opens a network; "no-network" has none')
        warnings.append('action = "report" lets through what the rules deny, and records it')
    status = top.integer("deny_status", 403, 403, 404)
    phases = read_phases(top, "phases", PHASES) if top.has("phases") else ("agent",)
    deny = _rules(top, "deny", read_deny, phases)
    allow = _short(top, phases) + _rules(top, "allow", read_allow, phases)
    names = top.texts("bundles", str)
    allow += _expand(top, names, bundles, phases)
    time, dns, addresses = top.table_at("time"), top.table_at("dns"), top.table_at("addresses")
    policy = Policy(
        network_mode=mode,
        action=action,
        deny_status=status,
        bundles=names,
        phases=phases,
        allow=allow,
        deny=deny,
        cutoff=time.moment("cutoff"),
        undated=time.word("undated", ("deny", "allow-recorded"), "deny"),
        deadline_s=time.integer("deadline_s", 0, 1, 10**9) if time.has("deadline_s") else None,
        dns_answer=dns.word("answer", ("allowed", "all-synthetic", "none"), "allowed"),
        max_qname_entropy_bits=dns.integer("max_qname_entropy_bits", 160, 0, 10**6),
        deny_classes=_classes(addresses),
        warnings=tuple(warnings),
    )
    for table in (time, dns, addresses, top):
        table.done()
    _check(top, policy)
    return policy


def _rules(
    top: Reader, key: str, read: Callable[[Reader, tuple[Phase, ...], int], Rule], phases: tuple[Phase, ...]
) -> tuple[Rule, ...]:
    tables = top.tables(key)
    if len(tables) > MAX_RULES:
        raise top.wrong(key, f"has more than {MAX_RULES} rules")
    return tuple(read(table, phases, number) for number, table in enumerate(tables, 1))


def _short(top: Reader, phases: tuple[Phase, ...]) -> tuple[Rule, ...]:
    hosts = top.texts("allowed_hosts", read_host)
    if not hosts:
        return ()
    return (Rule(SHORT_RULE, hosts, ports=frozenset({80, 443}), phases=phases),)


def _expand(top: Reader, names: Iterable[str], bundles: Bundles | None, phases: tuple[Phase, ...]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for name in names:
        try:
            if bundles is None:
                raise ValueError("cannot be looked up here")
            rules += bundles(name)
        except ValueError as problem:
            raise top.wrong("bundles", f"{name!a} {problem}") from None
    return tuple(replace(rule, phases=phases) for rule in rules)


def _classes(table: Reader) -> frozenset[str]:
    def one(text: str) -> str:
        if text not in OPTIONAL_CLASSES:
            raise ValueError(
                f"is no class to list; known is {', '.join(OPTIONAL_CLASSES)}, the others are always denied"
            )
        return text

    listed = table.texts("deny", one)
    return frozenset(listed) if table.has("deny") else frozenset(OPTIONAL_CLASSES)


def _check(top: Reader, policy: Policy) -> None:
    """What no single rule shows: names used twice, and rules that could never be enforced."""
    seen: set[str] = set()
    for rule in policy.allow + policy.deny:
        if rule.id in seen:
            raise _wrong(top, policy, rule, f"two rules have the id {rule.id!r}; an event must name one rule")
        seen.add(rule.id)
    if policy.network_mode == "no-network":
        for key in ("allow", "allowed_hosts", "bundles"):
            if top.has(key) and top.table[key]:
                raise top.wrong(key, 'needs network_mode = "allowlist"; "no-network" allows nothing')
    for rule in policy.allow:
        _check_addresses(top, policy, rule)
        if rule.inspect:
            continue
        for other in policy.allow:
            if other.inspect and _meet(rule, other):
                problem = f"is let through uninspected by rule {rule.id!r}, so no rule can say more about it; keep one"
                raise _wrong(top, policy, other, problem)
        for other in policy.deny:
            if (not other.whole or other.methods is not None) and _meet(rule, other):
                problem = f"denies paths or methods of a host that rule {rule.id!r} lets through uninspected"
                raise _wrong(top, policy, other, problem)


def _check_addresses(top: Reader, policy: Policy, rule: Rule) -> None:
    for network in rule.addresses:
        for edge in (network[0], network[-1]):
            refused = address_classes(edge) - (frozenset(OPTIONAL_CLASSES) - policy.deny_classes)
            if refused:
                classes = ", ".join(sorted(refused))
                raise _wrong(top, policy, rule, f"{network} holds {classes} addresses, which stay denied")


def _wrong(top: Reader, policy: Policy, rule: Rule, problem: str) -> PolicyError:
    """A complaint about one rule, at its place in the file if it stands there."""
    short = 1 if policy.allow and policy.allow[0].id == SHORT_RULE else 0
    for name, rules in (("allow", policy.allow[short:]), ("deny", policy.deny)):
        for at, one in enumerate(rules[: len(top.table.get(name, ()))]):
            if one is rule:
                return top.document.error(f"{name}[{at}]", "", problem)
    return PolicyError(top.document.source, problem, key=f"rule {rule.id}")


def _meet(one: Rule, two: Rule) -> bool:
    """Whether one connection can be meant by both."""
    if not set(one.phases) & set(two.phases):
        return False
    if one.ports is not None and two.ports is not None and not one.ports & two.ports:
        return False
    return any(a.overlaps(b) for a in one.hosts for b in two.hosts) or any(
        a.overlaps(b) for a in one.addresses for b in two.addresses if a.version == b.version
    )
