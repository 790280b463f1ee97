"""A policy written out: as canonical JSON, which its digest is of, and as TOML, which reads back to the same policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from caisson_gate.rules import Rule

if TYPE_CHECKING:
    from caisson_gate.policy import Policy

SCHEMA: Final = "caisson.gate/v1"


def canonical(policy: Policy) -> bytes:
    """Equal policies have equal bytes. Bundles are expanded; warnings do not count."""
    return json.dumps(document(policy), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def document(policy: Policy) -> dict[str, Any]:
    """Everything that counts, in the shape of the file, every value written out."""
    time: dict[str, Any] = {"undated": policy.undated}
    if policy.cutoff is not None:
        time["cutoff"] = policy.cutoff.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if policy.deadline_s is not None:
        time["deadline_s"] = policy.deadline_s
    return {
        "schema": SCHEMA,
        "network_mode": policy.network_mode,
        "action": policy.action,
        "deny_status": policy.deny_status,
        "phases": list(policy.phases),
        "time": time,
        "dns": {"answer": policy.dns_answer, "max_qname_entropy_bits": policy.max_qname_entropy_bits},
        "addresses": {"deny": sorted(policy.deny_classes)},
        "deny": [_deny(rule) for rule in policy.deny],
        "allow": [_allow(rule) for rule in policy.allow],
    }


def toml(policy: Policy, comments: tuple[str, ...] = ()) -> str:
    """The policy as a file that needs no bundle and no host: for evidence, and to go on writing from."""
    top = document(policy)
    lines = ["# " + "".join(letter if letter.isprintable() else "?" for letter in text) for text in comments]
    lines += [f"{key} = {_value(value)}" for key, value in top.items() if not _tabular(value)]
    for key, value in top.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]"]
            lines += [f"{name} = {inner if name == 'cutoff' else _value(inner)}" for name, inner in value.items()]
        elif _tabular(value):
            for rule in value:
                lines += ["", f"[[{key}]]"]
                lines += [f"{name} = {_value(inner)}" for name, inner in rule.items() if inner != []]
    return "\n".join(lines) + "\n"


def _tabular(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and all(isinstance(one, Mapping) for one in value))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value)


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes, and DEL, which JSON leaves alone."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _deny(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "hosts": [pattern.text for pattern in rule.hosts],
        "addresses": [str(network) for network in rule.addresses],
        "ports": "any" if rule.ports is None else sorted(rule.ports),
        "methods": "any" if rule.methods is None else sorted(method.decode() for method in rule.methods),
        "paths": [glob.text for glob in rule.paths],
        "phases": list(rule.phases),
        "reason": rule.why,
    }


def _allow(rule: Rule) -> dict[str, Any]:
    """What counts of an uninspected rule is less, and more would not be read back."""
    whole = _deny(rule)
    whole["inspect"] = rule.inspect
    whole["max_response_bytes"] = rule.max_response_bytes
    if not rule.inspect:
        return {key: value for key, value in whole.items() if key not in ("methods", "paths")}
    whole |= {
        "query": _query(rule),
        "websocket": rule.websocket,
        "max_request_bytes": rule.max_request_bytes,
        "index": rule.index,
        "git": rule.git,
    }
    if rule.inject is not None:
        whole |= {
            "inject": f"env:{rule.inject.env}",
            "inject_header": rule.inject.header,
            "inject_prefix": rule.inject.prefix,
        }
    return whole


def _query(rule: Rule) -> Any:
    if rule.query is None:
        return "any"
    if not rule.query:
        return "none"
    return {
        key.decode(): "*" if values is None else sorted(value.decode() for value in values)
        for key, values in rule.query.items()
    }
