"""The one decision: may this request be made? Pure, and made again at every step at which more is known.

Order: hard denials (deadline, malformed, mismatch, address class), then `deny`, then `allow`, then what the mode says
of everything else. Whoever cannot ask this function must refuse.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2

from caisson_gate.content import dns_message, git_service
from caisson_gate.names import (
    DENIED_NAMES,
    Host,
    canonical_authority,
    canonical_host,
)
from caisson_gate.paths import MalformedPath, canonical_path, check_query, query_pairs
from caisson_gate.policy import Policy
from caisson_gate.request import HARD, MODE_BYTES, Decision, Kind, Reason, Request
from caisson_gate.rules import Rule

__all__ = ["HARD", "Decision", "Kind", "Reason", "Request", "decide", "entropy_bits"]


class _Refused(Exception):
    def __init__(self, rule: str, reason: Reason, detail: str) -> None:
        self.rule, self.reason, self.detail = rule, reason, detail


_STATUS = {
    Reason.MALFORMED: 400,
    Reason.DNS_MALFORMED: 400,
    Reason.HOST_MISMATCH: 421,
    Reason.TOO_LARGE: 413,
}
_TLS_SCHEMES = frozenset({"https", "wss"})
_PLAIN_SCHEMES = frozenset({"http", "ws"})
_WEB_PORTS = frozenset({80, 443})
_HTTP_KINDS = frozenset({"http", "ws"})
_DENIED_ENDS = frozenset(name[-1] for name in DENIED_NAMES)
_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}")


def decide(policy: Policy, request: Request) -> Decision:
    """Judge one request by one policy. Never raises for anything a box can send."""
    host: Host | None = None
    path = b""
    try:
        if policy.deadline_s is not None and request.now > policy.deadline_s:
            raise _Refused("hard", Reason.AFTER_DEADLINE, "the deadline of the run has passed")
        if request.kind == "dns":
            host = _asked(request)
            rule = _answer(policy, request, host)
        else:
            if request.kind == "udp":
                raise _Refused("hard", Reason.PROTOCOL, "datagrams are not carried")
            host = _agreed(request)
            _check_address(policy, request, host)
            if request.kind in _HTTP_KINDS:
                path = _checked_path(request)
            rule = _judge(policy, request, host, path)
    except _Refused as refused:
        return _refusal(policy, request, refused, host, path)
    if rule is None:
        return Decision(
            True,
            "mode",
            host=host,
            port=request.port,
            path=path,
            websocket=True,
            max_request_bytes=MODE_BYTES,
            max_response_bytes=MODE_BYTES,
        )
    return Decision(
        True,
        rule.id,
        opaque=not rule.inspect,
        websocket=rule.websocket,
        max_request_bytes=rule.max_request_bytes,
        max_response_bytes=rule.max_response_bytes,
        inject=rule.inject,
        index=rule.index,
        host=host,
        port=request.port,
        path=path,
    )


def _refusal(policy: Policy, request: Request, refused: _Refused, host: Host | None, path: bytes) -> Decision:
    reason = refused.reason
    if policy.action == "report" and reason not in HARD and _open(policy, request):
        return Decision(True, refused.rule, reason, 200, refused.detail, True, host=host, port=request.port, path=path)
    status = _STATUS.get(reason, policy.deny_status)
    return Decision(False, refused.rule, reason, status, refused.detail, host=host, port=request.port, path=path)


def _open(policy: Policy, request: Request) -> bool:
    tables = policy.tables.get(request.phase)
    return tables is not None and tables.open


def _asked(request: Request) -> Host:
    host = canonical_host(request.name_dns) if request.name_dns is not None else None
    if host is None:
        raise _Refused("hard", Reason.DNS_MALFORMED, "the question holds no name")
    if host.address is not None or _stands_for_denied(host):
        raise _Refused("hard", Reason.DNS_NOT_ALLOWED, f"{host.text} stands for an address that stays denied")
    return host


def _answer(policy: Policy, request: Request, host: Host) -> Rule | None:
    """The rule by which a name is answered, None when the mode answers."""
    tables = policy.tables.get(request.phase)
    if tables is None or not tables.open or policy.dns_answer == "none":
        raise _Refused("mode", Reason.DNS_NOT_ALLOWED, "no name is answered in this mode and phase")
    for rule in tables.deny.rules(host):
        if rule.whole and rule.methods is None and rule.ports is None:
            raise _Refused(rule.id, Reason.DNS_NOT_ALLOWED, rule.why or f"{host.text} is denied")
    rules = tables.allow.rules(host)
    if rules and host.labels in tables.allow.names:  # the name itself stands in the policy
        return rules[0]
    if not rules and (policy.network_mode == "allowlist" and policy.dns_answer != "all-synthetic"):
        raise _Refused("default", Reason.DNS_NOT_ALLOWED, f"no rule allows {host.text}")
    if len(host.labels) == 1:
        raise _Refused("default", Reason.DNS_NOT_ALLOWED, "a name of a single label matches no rule")
    kept = min((len(pattern.labels) for rule in rules for pattern in rule.hosts if pattern.matches(host)), default=2)
    bits = sum(entropy_bits(label) for label in host.labels[: len(host.labels) - kept])
    if bits > policy.max_qname_entropy_bits:
        raise _Refused(
            "hard",
            Reason.DNS_NOT_ALLOWED,
            f"the name carries {bits:.0f} bits, more than the {policy.max_qname_entropy_bits} that a name may",
        )
    return rules[0] if rules else None


def entropy_bits(label: str) -> float:
    """How much a label could carry at most, by its own letters: length times Shannon entropy."""
    size = len(label)
    return sum(-count * log2(count / size) for count in Counter(label).values())


def _agreed(request: Request) -> Host:
    """The one host that every name of the request means."""
    host: Host | None = None
    if request.name_connect is not None:
        authority = canonical_authority(request.name_connect, request.port)
        if authority is None:
            raise _Refused("hard", Reason.MALFORMED, "the target is no host and port")
        host = authority[0]
        if authority[1] != request.port:
            raise _Refused("hard", Reason.HOST_MISMATCH, "the target's port is not the connection's")
    if request.name_dns is not None:
        named = canonical_host(request.name_dns)
        if named is None:
            raise _Refused("hard", Reason.MALFORMED, "the name of the connection is no host")
        if host is not None and host.text != named.text:
            raise _Refused("hard", Reason.HOST_MISMATCH, f"the connection goes to {named.text}, not to {host.text}")
        host = named
    if host is None:
        raise _Refused("hard", Reason.MALFORMED, "nothing names the target")
    if request.name_sni is not None:
        named = canonical_host(request.name_sni)
        if named is None:
            raise _Refused("hard", Reason.MALFORMED, "the server name of the TLS handshake is no host")
        if named.text != host.text:
            raise _Refused(
                "hard", Reason.SNI_MISMATCH, f"TLS asks for {named.text}, the connection goes to {host.text}"
            )
    if request.kind in _HTTP_KINDS:
        if request.name_host is None:
            raise _Refused("hard", Reason.MALFORMED, "the request names no host")
        authority = canonical_authority(request.name_host, 443 if request.scheme in _TLS_SCHEMES else 80)
        if authority is None:
            raise _Refused("hard", Reason.MALFORMED, "the request's host is no host")
        if authority[0].text != host.text or authority[1] != request.port:
            asked, reached = f"{authority[0].authority}:{authority[1]}", f"{host.authority}:{request.port}"
            detail = f"the request is for {asked}, the connection goes to {reached}"
            raise _Refused("hard", Reason.HOST_MISMATCH, detail)
    return host


def _stands_for_denied(host: Host) -> bool:
    labels = host.labels
    return bool(labels) and labels[-1] in _DENIED_ENDS and any(labels[-len(name) :] == name for name in DENIED_NAMES)


def _check_address(policy: Policy, request: Request, host: Host) -> None:
    if _stands_for_denied(host):
        raise _Refused("hard", Reason.ADDRESS_DENIED, f"{host.text} stands for an address that stays denied")
    text = request.address if request.address is not None else host.text if host.address is not None else None
    if text is None:
        return
    if host.address is not None and not _same_address(text, host):
        raise _Refused("hard", Reason.ADDRESS_DENIED, "what would be dialled is not the address that was asked for")
    refused = policy.refuses(text, request.phase)
    if refused is not None and (refused[0] == "hard" or host.address is None):  # a literal that a rule denies: below
        raise _Refused(refused[0], Reason.ADDRESS_DENIED, f"{text} {refused[1]}")


def _same_address(text: str, host: Host) -> bool:
    found = canonical_host(text.encode("utf-8", "replace"))
    return found is not None and found.text == host.text


def _checked_path(request: Request) -> bytes:
    scheme = request.scheme
    if scheme not in _TLS_SCHEMES and scheme not in _PLAIN_SCHEMES:
        raise _Refused("hard", Reason.PROTOCOL, "the scheme is none of http, https, ws and wss")
    if request.port == (443 if scheme in _PLAIN_SCHEMES else 80):
        raise _Refused("hard", Reason.PROTOCOL, f"{scheme} is not spoken on port {request.port}")
    if request.method is None or request.path is None or not _METHOD.fullmatch(request.method):
        raise _Refused("hard", Reason.MALFORMED, "the request has no method or no path")
    if request.method == b"CONNECT":
        raise _Refused("hard", Reason.PROTOCOL, "a tunnel inside a connection is not carried")
    try:
        if request.query is not None:
            check_query(request.query)
        return canonical_path(request.path)
    except MalformedPath as malformed:
        raise _Refused("hard", Reason.MALFORMED, str(malformed)) from None


def _judge(policy: Policy, request: Request, host: Host, path: bytes) -> Rule | None:
    """The rule that allows it, None when the mode does."""
    tables = policy.tables.get(request.phase)
    if tables is None or not tables.open:
        raise _Refused("mode", Reason.NOT_ALLOWED, "there is no network in this mode and phase")
    headed = request.kind in _HTTP_KINDS
    for rule in tables.deny.near(host, path) if headed else tables.deny.rules(host):
        if rule.ports is not None and request.port not in rule.ports:
            continue
        if headed:
            if rule.methods is not None and request.method not in rule.methods:
                continue
            if not _matches(rule, path):
                continue
        elif rule.methods is not None or not rule.whole:
            continue
        raise _Refused(rule.id, Reason.DENIED_RULE, rule.why or "a rule denies it")
    if headed:
        for rule in tables.allow.near(host, path):
            if _fits(request, rule, path)[1] is None:
                return rule
    rules = tables.allow.rules(host)
    best, refused = 0, None
    for rule in rules:
        rank, reason, detail = _fits(request, rule, path)
        if reason is None:
            return rule
        if rank > best:
            best, refused = rank, _Refused(rule.id, reason, detail)
    if refused is not None and (policy.network_mode == "allowlist" or refused.reason is Reason.TOO_LARGE):
        raise refused
    _by_mode(policy, request, host, path)
    return None


def _fits(request: Request, rule: Rule, path: bytes) -> tuple[int, Reason | None, str]:
    """How far the request gets through a rule of its host: the furthest refusal is the one that is told."""
    if rule.ports is not None and request.port not in rule.ports:
        return 1, Reason.PORT_NOT_ALLOWED, f"port {request.port} is not among the rule's"
    if request.kind == "tcp" and (rule.inspect or request.port in _WEB_PORTS):
        return 2, Reason.PROTOCOL, "what came is neither TLS nor HTTP"
    if request.kind not in _HTTP_KINDS or not rule.inspect:
        return 9, None, ""
    if not _matches(rule, path):
        return 3, Reason.PATH_NOT_ALLOWED, "the path is not among the rule's"
    git = git_service(path, request.query, request.content_type)
    spoken = bool(git) and (rule.git == "push" or rule.git == git)
    if rule.methods is not None and request.method not in rule.methods and not (spoken and request.method == b"POST"):
        return 4, Reason.METHOD_NOT_ALLOWED, "the method is not among the rule's"
    if rule.query is not None and not spoken and not _query_fits(request.query, rule):
        return 5, Reason.PATH_NOT_ALLOWED, "the query is not among the rule's"
    if git and not spoken:
        return 6, Reason.DENIED_RULE, f'this is git over HTTP; a rule with git = "{git}" would allow it'
    if dns_message(path, request.query, request.content_type, request.accept):
        return 6, Reason.DENIED_RULE, "this is a DNS question inside HTTPS"
    if request.kind == "ws" and not rule.websocket:
        return 7, Reason.PROTOCOL, "the rule has no websocket = true"
    if request.length is not None and request.length > rule.max_request_bytes:
        return 8, Reason.TOO_LARGE, f"the request holds more than {rule.max_request_bytes} bytes"
    return 9, None, ""


def _matches(rule: Rule, path: bytes) -> bool:
    for glob in rule.paths:  # noqa: SIM110  (a generator costs more than the match)
        if glob.matches(path):
            return True
    return False


def _query_fits(query: bytes | None, rule: Rule) -> bool:
    if not query:
        return True
    pairs = query_pairs(query)
    if pairs is None or rule.query is None:
        return False
    for key, value in pairs:
        if key not in rule.query:
            return False
        values = rule.query[key]
        if values is not None and value not in values:
            return False
    return True


def _by_mode(policy: Policy, request: Request, host: Host, path: bytes) -> None:
    """What happens where no rule speaks."""
    if policy.network_mode == "allowlist":
        if host.address is not None:
            raise _Refused("default", Reason.IP_LITERAL, f"{host.text} is an address, and no rule lists it")
        raise _Refused("default", Reason.NOT_ALLOWED, f"no rule allows {host.text}")
    if host.address is None and len(host.labels) == 1:
        raise _Refused("default", Reason.NOT_ALLOWED, "a name of a single label matches no rule")
    if request.kind == "tcp":
        raise _Refused("default", Reason.PROTOCOL, "what came is neither TLS nor HTTP")
    if policy.network_mode == "record":
        return
    if host.address is not None:
        raise _Refused(
            "default", Reason.IP_LITERAL, f"{host.text} is an address, and a list of denied names needs names"
        )
    if request.port not in _WEB_PORTS:
        raise _Refused("default", Reason.PORT_NOT_ALLOWED, f"port {request.port} is neither 80 nor 443")
    if request.kind in _HTTP_KINDS and dns_message(path, request.query, request.content_type, request.accept):
        raise _Refused("content", Reason.DENIED_RULE, "this is a DNS question inside HTTPS")
