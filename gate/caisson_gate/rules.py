"""One rule of a policy: what it holds, and how its table is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Literal

from caisson_gate.forges import repository
from caisson_gate.names import Network
from caisson_gate.paths import Glob
from caisson_gate.patterns import BadPattern, HostPattern
from caisson_gate.schema import Reader

Phase = Literal["build", "agent", "verify"]
PHASES: tuple[Phase, ...] = ("build", "agent", "verify")
GIT = ("none", "fetch", "push")
INDEXES = ("none", "pypi", "npm", "files", "apt")
"""What the time cut-off understands of a host: see answers.py."""
DEFAULT_METHODS = ("GET", "HEAD")
DEFAULT_REQUEST_BYTES = 1 << 20
DEFAULT_RESPONSE_BYTES = 1 << 30
MOST_BYTES = 1 << 40
ANY = "any"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}", re.ASCII)
_ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_HEADER = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
RESERVED_IDS = ("default", "hard", "mode", "content")
"""What the gate itself decides by, in place of a rule's id."""


@dataclass(frozen=True, slots=True)
class Inject:
    """A credential that the gate adds to a request, so that the box never holds it.

    Its value is the gate's environment variable ``env``, sent as ``header``: ``prefix`` and then the value.
    """

    env: str
    header: str = "authorization"
    prefix: str = "Bearer "


@dataclass(frozen=True, slots=True)
class Rule:
    """An allow or deny rule. Of ``ports`` and ``methods`` None means any, of ``phases`` every one is listed.

    ``query`` is None for any, else the allowed values of each key, None among them for any value; an empty one allows
    no query at all. A deny rule uses hosts, addresses, ports, methods, paths, phases and ``why``.
    """

    id: str
    hosts: tuple[HostPattern, ...] = ()
    addresses: tuple[Network, ...] = ()
    ports: frozenset[int] | None = frozenset({443})
    methods: frozenset[bytes] | None = frozenset({b"GET", b"HEAD"})
    paths: tuple[Glob, ...] = (Glob.parse("/**"),)
    query: Mapping[bytes, frozenset[bytes] | None] | None = None
    websocket: bool = False
    inspect: bool = True
    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    max_response_bytes: int = DEFAULT_RESPONSE_BYTES
    inject: Inject | None = None
    index: str = "none"
    git: str = "none"
    phases: tuple[Phase, ...] = PHASES
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether every path is meant, so that names alone decide."""
        return any(glob.everything for glob in self.paths)


def read_allow(table: Reader, phases: tuple[Phase, ...], number: int) -> Rule:
    """An `[[allow]]` table."""
    rule = Rule(
        id=_read_id(table, f"allow-{number}"),
        hosts=_hosts(table, wide=False),
        addresses=_addresses(table),
        ports=_ports(table, frozenset({443})),
        methods=_methods(table, frozenset(name.encode() for name in DEFAULT_METHODS)),
        paths=_paths(table, folded=False),
        query=_query(table),
        websocket=table.flag("websocket", False),
        inspect=table.flag("inspect", True),
        max_request_bytes=table.integer("max_request_bytes", DEFAULT_REQUEST_BYTES, 0, MOST_BYTES),
        max_response_bytes=table.integer("max_response_bytes", DEFAULT_RESPONSE_BYTES, 0, MOST_BYTES),
        inject=_inject(table),
        index=table.word("index", INDEXES, "none"),
        git=table.word("git", GIT, "none"),
        phases=read_phases(table, "phases", phases),
        why=table.text("reason"),
    )
    _check_target(table, rule)
    if not rule.inspect:
        for key in ("methods", "paths", "query", "websocket", "inject", "index", "git", "max_request_bytes"):
            if table.has(key):
                raise table.wrong(key, "cannot be enforced with inspect = false, where nothing inside TLS is seen")
    if not rule.inspect and rule.ports is not None and 80 in rule.ports:
        raise table.wrong("ports", "has 80, where nothing is encrypted: drop it, or inspect = false")
    if rule.inject is not None:
        if any(pattern.depth.value for pattern in rule.hosts) or rule.addresses:
            raise table.wrong("inject", "needs hosts written out: a credential goes to no wildcard and no address")
        if rule.ports is None or 80 in rule.ports:
            raise table.wrong("inject", "needs ports without 80 and without any: a credential is sent over TLS only")
    table.done()
    return rule


def read_deny(table: Reader, phases: tuple[Phase, ...], number: int) -> Rule:
    """A `[[deny]]` table. Its paths match without regard to case: some servers have none."""
    hosts, paths = _repository(table)
    rule = Rule(
        id=_read_id(table, f"deny-{number}"),
        hosts=hosts or _hosts(table, wide=True),
        addresses=_addresses(table),
        ports=_ports(table, None),
        methods=_methods(table, None),
        paths=paths or _paths(table, folded=True),
        phases=read_phases(table, "phases", phases),
        why=table.text("reason"),
    )
    _check_target(table, rule)
    table.done()
    return rule


def read_phases(table: Reader, key: str, allowed: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Phases of a run, in their order; all the allowed ones when absent."""

    def one(text: str) -> str:
        if text not in PHASES:
            raise ValueError(f"is no phase; phases are {', '.join(PHASES)}")
        if text not in allowed:
            raise ValueError("is a phase in which this policy has no network; add it to `phases` at the top")
        return text

    found = table.texts(key, one)
    if table.has(key) and not found:
        raise table.wrong(key, "is empty, so the rule could never count; leave it out or name phases")
    return tuple(phase for phase in allowed if phase in found) if table.has(key) else allowed


def read_host(text: str) -> HostPattern:
    """An entry of `allowed_hosts`."""
    return HostPattern.parse(text)


def _read_id(table: Reader, default: str) -> str:
    name = table.text("id", default)
    if not _ID.fullmatch(name):
        raise table.wrong("id", "must be 1 to 64 of letters, digits, dot, dash and underscore, no dash or dot first")
    if name in RESERVED_IDS:
        raise table.wrong("id", f"{', '.join(RESERVED_IDS)} are what the gate itself decides by; use another name")
    return name


def _hosts(table: Reader, wide: bool) -> tuple[HostPattern, ...]:
    def one(text: str) -> HostPattern:
        return HostPattern.parse(text, wide)

    return table.texts("hosts", one)


def _addresses(table: Reader) -> tuple[Network, ...]:
    def one(text: str) -> Network:
        try:
            return ip_network(text)
        except ValueError as problem:
            raise BadPattern(f"is no address or network without host bits ({problem})") from None

    return table.texts("addresses", one)


def _ports(table: Reader, default: frozenset[int] | None) -> frozenset[int] | None:
    if table.table.get("ports") == ANY:
        table.asked.add("ports")
        return None
    values = table.get("ports", list, f'a list of numbers, or "{ANY}"')
    if values is None:
        return default
    if not values or any(
        not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535 for port in values
    ):
        raise table.wrong("ports", "must be one or more numbers from 1 to 65535")
    return frozenset(values)


def _methods(table: Reader, default: frozenset[bytes] | None) -> frozenset[bytes] | None:
    if table.table.get("methods") == ANY:
        table.asked.add("methods")
        return None

    def one(text: str) -> bytes:
        if not _METHOD.fullmatch(text):
            raise ValueError("is no method in upper case")
        if text == "CONNECT":
            raise ValueError("is the tunnel itself, which the hosts and ports of a rule already allow")
        return text.encode()

    found = table.texts("methods", one)
    if table.has("methods") and not found:
        raise table.wrong("methods", "is empty, so the rule could never match; leave it out or name methods")
    return frozenset(found) or default


def _paths(table: Reader, folded: bool) -> tuple[Glob, ...]:
    def one(text: str) -> Glob:
        return Glob.parse(text, folded)

    found = table.texts("paths", one)
    if table.has("paths") and not found:
        raise table.wrong("paths", "is empty, so the rule could never match; leave it out or name paths")
    return found or (Glob.parse("/**"),)


def _query(table: Reader) -> Mapping[bytes, frozenset[bytes] | None] | None:
    value: Any = table.table.get("query", ANY)
    table.asked.add("query")
    if value == ANY:
        return None
    if value == "none":
        return {}
    if not isinstance(value, dict) or not value:
        raise table.wrong("query", f'must be "{ANY}", "none" or a table of allowed values')
    inner = table.table_at("query")
    allowed: dict[bytes, frozenset[bytes] | None] = {}
    for key in value:
        if value[key] == "*":
            allowed[key.encode()] = None
        else:
            values = inner.texts(key, str.encode)
            if not values:
                raise inner.wrong(key, 'needs a list of allowed values, or "*" for any')
            allowed[key.encode()] = frozenset(values)
    return allowed


def _repository(table: Reader) -> tuple[tuple[HostPattern, ...], tuple[Glob, ...]]:
    """Hosts and paths of `repository`, nothing without it."""
    if not table.has("repository"):
        return (), ()
    for key in ("hosts", "addresses", "paths"):
        if table.has(key):
            raise table.wrong(key, "cannot stand beside `repository`, which says it itself; make two rules")
    try:
        return repository(table.text("repository"))
    except ValueError as problem:
        raise table.wrong("repository", str(problem)) from None


def _inject(table: Reader) -> Inject | None:
    if not table.has("inject"):
        for key in ("inject_header", "inject_prefix"):
            if table.has(key):
                raise table.wrong(key, 'needs inject = "env:NAME" beside it')
        return None
    match = _ENV.fullmatch(table.text("inject"))
    if match is None:
        raise table.wrong("inject", 'must be "env:NAME", the variable of the gate that holds the credential')
    header = table.text("inject_header", "authorization")
    if not _HEADER.fullmatch(header):
        raise table.wrong("inject_header", "must be a header's name in lower case")
    return Inject(match[1], header, table.text("inject_prefix", "Bearer " if header == "authorization" else ""))


def _check_target(table: Reader, rule: Rule) -> None:
    if not rule.hosts and not rule.addresses:
        key = "hosts" if table.has("hosts") or not table.has("addresses") else "addresses"
        raise table.wrong(key, "needs at least one entry, else the rule never matches; name hosts or addresses")
