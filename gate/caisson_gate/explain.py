"""What would become of one URL: each step of a request, judged by the same function that the gate asks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from caisson_gate.decide import Decision, Request, decide
from caisson_gate.names import MalformedName, parse_authority
from caisson_gate.policy import Policy
from caisson_gate.rules import Phase

_URL = re.compile(rb"(?i:(https?|wss?))://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class NotAUrl(ValueError):
    """Nothing that a client would send a request for."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step and its decision. Steps after a refusal are not made, as in the gate."""

    kind: str
    decision: Decision


def explain(
    policy: Policy,
    url: bytes,
    method: bytes = b"GET",
    phase: Phase = "agent",
    sni: bytes | None = None,
    host: bytes | None = None,
    address: str | None = None,
    length: int | None = None,
    now: float = 0.0,
) -> list[Step]:
    """The steps of a request for a URL. SNI and Host are those of an honest client unless they are given."""
    match = _URL.fullmatch(url)
    if match is None:
        raise NotAUrl("write it as http://, https://, ws:// or wss:// with a host")
    scheme = match[1].decode().lower()
    authority, path, query = match[2], match[3], match[4]
    port, literal = _PORTS[scheme], False
    try:
        parsed, port = parse_authority(authority, port)
        literal = parsed.address is not None
        honest = authority.rpartition(b":")[0] if authority.endswith(b":%d" % port) else authority
    except MalformedName:
        honest = authority
    names = {"name_connect": authority} if literal else {"name_dns": honest}
    tls = scheme in ("https", "wss")
    server_name = sni if sni is not None else None if literal or not tls else honest
    kind = "ws" if scheme.startswith("ws") else "http"
    whole = Request(
        kind,  # type: ignore[arg-type]
        port,
        scheme,
        name_sni=server_name,
        name_host=host if host is not None else authority,
        address=address,
        method=method,
        path=path or b"/",
        query=query,
        length=length,
        now=now,
        phase=phase,
        **names,
    )
    asked = [] if literal else [Request("dns", 53, name_dns=honest, now=now, phase=phase)]
    asked.append(Request("connect", port, address=address, now=now, phase=phase, **names))  # type: ignore[arg-type]
    if tls:
        asked.append(Request("tls", port, name_sni=server_name, address=address, now=now, phase=phase, **names))  # type: ignore[arg-type]
    asked.append(whole)
    steps: list[Step] = []
    for request in asked:
        decision = decide(policy, request)
        steps.append(Step(request.kind, decision))
        if not decision.allowed or (decision.opaque and request.kind == "tls"):
            break
    return steps
