"""Policies out of what others write: Harbor's task.toml, sandbox-runtime's settings, GitHub's agentic workflows.

What has no counterpart is left closed and said so in a warning; nothing is opened wider than it was.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from caisson_gate.errors import PolicyError
from caisson_gate.frontmatter import network_of
from caisson_gate.names import ALWAYS_DENIED, Network, address_classes
from caisson_gate.paths import Glob, MalformedPath
from caisson_gate.patterns import BadPattern, HostPattern
from caisson_gate.policy import Policy
from caisson_gate.rules import Phase, Rule

LARGE = 1 << 40
"""The limit, in bytes, of formats that know none."""
FORMATS = ("harbor", "sandbox-runtime", "gh-aw")
_ECOSYSTEMS = {"python": "pip", "node": "npm", "linux-distros": "apt"}


@dataclass(frozen=True, slots=True)
class Converted:
    """A policy, the bundles to add to it by name, and what did not come over."""

    policy: Policy
    bundles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def convert(data: bytes, kind: str, source: str) -> Converted:
    """Read another tool's file. PolicyError when it is none, or asks for what a box here cannot be held to."""
    readers: Mapping[str, Callable[[bytes, str], Converted]] = {
        "harbor": from_harbor,
        "sandbox-runtime": from_sandbox_runtime,
        "gh-aw": from_gh_aw,
    }
    return readers[kind](data, source)


def harbor_policy(
    network_mode: str,
    allowed_hosts: Sequence[str] = (),
    blocked_hosts: Sequence[str] = (),
    phases: tuple[Phase, ...] = ("agent",),
    blocked_urls: Sequence[str] = (),
    source: str = "task.toml",
) -> Policy:
    """Harbor's network policy for the given phases, exactly or not at all: PolicyError for what cannot be held to.

    Its allow list is by host alone, so any method, port, path and size of HTTP and TLS passes to a listed host.
    `public` is recorded; `denylist`, a dialect of others, lets through what is not blocked.
    """
    if network_mode == "no-network":
        return Policy(phases=phases)
    if network_mode in ("public", "record"):
        return Policy(network_mode="record", phases=phases)
    if network_mode == "denylist":
        deny = _denials(blocked_hosts, blocked_urls, phases, source)
        return Policy(network_mode="denylist", phases=phases, deny=deny)
    if network_mode != "allowlist":
        raise PolicyError(
            source, f"{network_mode!r:.60} is none of no-network, allowlist, public and denylist", key="network_mode"
        )
    hosts: list[HostPattern] = []
    addresses: list[Network] = []
    for entry in allowed_hosts:
        _listed(entry, hosts, addresses, source)
    if not hosts and not addresses:
        return Policy(network_mode="allowlist", phases=phases)
    rule = by_host("allowed_hosts", hosts, addresses, phases)
    return Policy(network_mode="allowlist", phases=phases, allow=(rule,))


def by_host(
    name: str,
    hosts: Iterable[HostPattern],
    addresses: Iterable[Network] = (),
    phases: tuple[Phase, ...] = ("agent",),
    ports: frozenset[int] | None = None,
) -> Rule:
    """A rule that asks for nothing but the host."""
    return Rule(
        name,
        tuple(dict.fromkeys(hosts)),
        tuple(dict.fromkeys(addresses)),
        ports=ports,
        methods=None,
        websocket=True,
        git="push",
        max_request_bytes=LARGE,
        max_response_bytes=LARGE,
        phases=phases,
    )


def _listed(entry: str, hosts: list[HostPattern], addresses: list[Network], source: str, wide: bool = False) -> None:
    """One entry of a host list: a name, `*.suffix`, an address or a network."""
    text = entry.strip().lower().removesuffix(".")
    try:
        network = ip_network(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        try:
            hosts.append(HostPattern.parse(text, wide))
        except BadPattern as problem:
            raise PolicyError(source, f"{entry!r:.80} {problem}; change it, or give --gate a policy") from None
        return
    for edge in (network[0], network[-1]):
        if not wide and (refused := address_classes(edge) & (ALWAYS_DENIED | {"private"})):
            classes = ", ".join(sorted(refused))
            raise PolicyError(source, f"{entry!r:.80} holds {classes} addresses, which stay denied here")
    addresses.append(network)


def _denials(blocked: Sequence[str], urls: Sequence[str], phases: tuple[Phase, ...], source: str) -> tuple[Rule, ...]:
    """Names with everything below them; of a URL its path with everything below it."""
    hosts: list[HostPattern] = []
    addresses: list[Network] = []
    for entry in blocked:
        name = entry.strip().removeprefix("*.")
        _listed(name if _is_address(name) else f"**.{name}", hosts, addresses, source, wide=True)
    rules = []
    if hosts or addresses:
        rules.append(Rule("blocked_hosts", tuple(hosts), tuple(addresses), ports=None, methods=None, phases=phases))
    for number, url in enumerate(urls, 1):
        parts = urlsplit(url if "://" in url else f"https://{url}")
        path = "/" + parts.path.strip("/*")
        try:
            pattern = HostPattern.parse(f"**.{(parts.hostname or '').removesuffix('.')}", wide=True)
            glob = Glob.parse("/**" if path == "/" else f"{path}/**", folded=True)
        except (BadPattern, MalformedPath) as problem:
            raise PolicyError(source, f"{url!r:.80} {problem}", key="blocked_urls") from None
        rules.append(Rule(f"blocked-url-{number}", (pattern,), ports=None, methods=None, paths=(glob,), phases=phases))
    return tuple(rules)


def from_harbor(data: bytes, source: str) -> Converted:
    """A task.toml: the agent's policy, and the verifier's where it can be one policy with it."""
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as problem:
        raise PolicyError(source, f"is no TOML: {' '.join(str(problem).split())[:200]}") from None
    warnings: list[str] = []
    environment = _section(table, "environment", source)
    base = _settings(environment, source) or (
        "public" if environment.get("allow_internet", True) else "no-network",
        (),
        (),
        (),
    )
    agent = _settings(_section(table, "agent", source), source) or base
    verifier = _settings(_section(table, "verifier", source), source) or base
    policy = harbor_policy(agent[0], agent[1], agent[2], ("agent",), agent[3], source)
    if verifier[0] == agent[0] == "allowlist":
        other = harbor_policy(verifier[0], verifier[1], (), ("verify",), (), source)
        rules = policy.allow + tuple(replace(rule, id="verifier_hosts") for rule in other.allow)
        policy = replace(policy, phases=("agent", "verify"), allow=rules)
    elif verifier[0] != "no-network":
        warnings.append(f"the verifier's {verifier[0]} is left out: rooms that grade have no network here")
    if agent[0] == "public":
        warnings.append('"public" is taken as "record": everything is let through and recorded')
    return Converted(policy, warnings=tuple(warnings))


Settings = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _settings(table: Mapping[str, Any], source: str) -> Settings | None:
    """Mode and lists of a section, None where it says nothing."""
    if not any(key in table for key in ("network_mode", "allowed_hosts", "blocked_hosts", "blocked_urls")):
        return None
    lists = [_strings(table, key, source) for key in ("allowed_hosts", "blocked_hosts", "blocked_urls")]
    mode = table.get("network_mode", "denylist" if lists[1] or lists[2] else "allowlist")
    if not isinstance(mode, str):
        raise PolicyError(source, "must be a string", key="network_mode")
    if lists[0] and mode != "allowlist":
        raise PolicyError(source, 'needs network_mode = "allowlist"', key="allowed_hosts")
    return mode, lists[0], lists[1], lists[2]


def from_sandbox_runtime(data: bytes, source: str) -> Converted:
    """The `network` of a settings file in JSON: allowedDomains and deniedDomains, each with a port if it likes."""
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError):
        raise PolicyError(source, "is no JSON") from None
    network = _section(settings if isinstance(settings, dict) else {}, "network", source)
    if not network:
        raise PolicyError(source, "has no network settings; look for allowedDomains", key="network")
    warnings = [f"{key} has no counterpart and is left out" for key in sorted(network) if key not in _SRT_KEYS]
    allow, deny = [], []
    for number, entry in enumerate(_strings(network, "allowedDomains", source), 1):
        name, ports = _split_port(entry)
        if name in ("localhost", "127.0.0.1", "[::1]"):
            warnings.append(f"{entry} is left out: a box's own loopback needs no rule, the host's is never reached")
            continue
        hosts: list[HostPattern] = []
        addresses: list[Network] = []
        _listed(name, hosts, addresses, source)
        allow.append(by_host(f"allowed-{number}", hosts, addresses, ports=ports))
    for number, entry in enumerate(_strings(network, "deniedDomains", source), 1):
        name, ports = _split_port(entry)
        if name == "*":
            if ports is None:
                return Converted(Policy(), warnings=("everything is denied, so there is no network",))
            warnings.append(f"{entry} is left out: ports are denied by not listing them")
            continue
        hosts, addresses = [], []
        _listed(name.replace("*.", "**.", 1), hosts, addresses, source, wide=True)
        deny.append(
            Rule(f"denied-{number}", tuple(hosts), tuple(addresses), ports=ports, methods=None, phases=("agent",))
        )
    policy = Policy(network_mode="allowlist", allow=tuple(allow), deny=tuple(deny))
    return Converted(policy, warnings=tuple(warnings))


_SRT_KEYS = frozenset({"allowedDomains", "deniedDomains"})


def _split_port(entry: str) -> tuple[str, frozenset[int] | None]:
    name, colon, port = entry.rpartition(":")
    if (
        colon
        and port.isascii()
        and port.isdigit()
        and 1 <= int(port) <= 65535
        and (":" not in name or name.endswith("]"))
    ):
        return name, frozenset({int(port)})
    return entry, None


def from_gh_aw(data: bytes, source: str) -> Converted:
    """The `network` of a workflow's front matter. A listed domain means what is below it as well."""
    network = network_of(data, source)
    warnings: list[str] = []
    if network is None or network == "defaults":
        warnings.append("`defaults` names hosts of its own tool, which are left out: list what the task needs")
        return Converted(Policy(network_mode="allowlist"), warnings=tuple(warnings))
    if not isinstance(network, Mapping):
        raise PolicyError(source, "must be `defaults` or a table", key="network")
    if not network:
        return Converted(Policy())
    warnings += [f"{key} has no counterpart and is left out" for key in network if key not in ("allowed", "blocked")]
    bundles: list[str] = []
    allow, deny = [], []
    for number, entry in enumerate(_strings(network, "allowed", source), 1):
        scheme, _, rest = entry.rpartition("://")
        if "." not in rest:
            if rest in _ECOSYSTEMS:
                bundles.append(_ECOSYSTEMS[rest])
            else:
                warnings.append(f"`{rest}` names hosts of its own tool, which are left out: list what the task needs")
            continue
        hosts: list[HostPattern] = []
        addresses: list[Network] = []
        ports = {"https": frozenset({443}), "http": frozenset({80})}.get(scheme, frozenset({80, 443}))
        _listed(rest if rest.startswith("*.") or _is_address(rest) else f"**.{rest}", hosts, addresses, source)
        allow.append(by_host(f"allowed-{number}", hosts, addresses, ports=ports))
    for number, entry in enumerate(_strings(network, "blocked", source), 1):
        if "." in entry:
            hosts, addresses = [], []
            wild = entry if _is_address(entry) else "**." + entry.removeprefix("*.")
            _listed(wild, hosts, addresses, source, wide=True)
            deny.append(
                Rule(f"blocked-{number}", tuple(hosts), tuple(addresses), ports=None, methods=None, phases=("agent",))
            )
        elif _ECOSYSTEMS.get(entry) in bundles:
            bundles.remove(_ECOSYSTEMS[entry])
    policy = Policy(network_mode="allowlist", allow=tuple(allow), deny=tuple(deny))
    return Converted(policy, tuple(dict.fromkeys(bundles)), tuple(warnings))


def _is_address(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _section(table: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise PolicyError(source, "must be a table", key=key)
    return value


def _strings(table: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = table.get(key, ())
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise PolicyError(source, "must be a list of strings", key=key)
    return tuple(value)
