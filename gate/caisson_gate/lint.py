"""What a policy lets through that its author may not have meant. (A broken policy is not linted: it does not load.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from caisson_gate.mirrors import mirror_of
from caisson_gate.names import Host
from caisson_gate.patterns import Depth, HostPattern
from caisson_gate.policy import Policy
from caisson_gate.rules import Rule

WARNING, NOTE = "warning", "note"
LARGE_REQUEST = 16 << 20
"""A rule that lets more than this out in one request, in bytes, is worth a word."""


@dataclass(frozen=True, slots=True)
class Remark:
    """``level`` is warning or note; ``rule`` the id it is about, "" for the policy as a whole."""

    level: str
    rule: str
    text: str


def lint(policy: Policy, environment: Mapping[str, str] | None = None) -> list[Remark]:
    """Every remark, warnings first. With an environment it is also asked for the credentials that rules inject."""
    remarks = [Remark(WARNING, "", text) for text in policy.warnings]
    remarks += _whole(policy)
    for rule in policy.allow:
        remarks += _rule(policy, rule)
        if rule.inject is not None and environment is not None and not environment.get(rule.inject.env):
            remarks.append(Remark(WARNING, rule.id, f"injects env:{rule.inject.env}, which is not set here"))
    remarks += _never(policy)
    remarks += _not_narrower(policy)
    return sorted(dict.fromkeys(remarks), key=lambda remark: remark.level != WARNING)


def _whole(policy: Policy) -> Iterator[Remark]:
    if policy.network_mode in ("record", "denylist"):
        yield Remark(
            WARNING,
            "",
            f'network_mode = "{policy.network_mode}" reaches archives, readers and mirrors, which carry denied content',
        )
    elif policy.network_mode == "allowlist" and not policy.allow:
        yield Remark(NOTE, "", "the allow list is empty, so nothing is reached")
    if not policy.deny_classes and policy.network_mode != "no-network":
        yield Remark(WARNING, "", "[addresses] deny = [] lets names resolve to private addresses of the gate's network")
    if policy.dns_answer == "all-synthetic":
        yield Remark(NOTE, "", "every name is answered; connections to those not allowed are refused and recorded")
    beyond = [rule.id for rule in policy.allow if rule.index == "none"]
    if policy.cutoff is not None and beyond:
        yield Remark(NOTE, "", f"the time cut-off reaches indexes only, not the answers of {', '.join(beyond)}")
    if policy.undated == "allow-recorded" and policy.cutoff is not None:
        yield Remark(WARNING, "", 'undated = "allow-recorded" lets through what may be newer than the cut-off')


def _rule(policy: Policy, rule: Rule) -> Iterator[Remark]:
    for pattern in rule.hosts:
        found = mirror_of(pattern)
        if found is None:
            continue
        mirror, listed = found
        if mirror.kind == "forge" and _repository_denied(policy, pattern):
            continue
        text = f"{pattern.text} reaches {listed.text} ({mirror.kind}): {mirror.about}"
        yield Remark(
            WARNING if rule.whole or mirror.kind in ("reader", "translator", "resolver") else NOTE, rule.id, text
        )
    if not rule.inspect:
        yield Remark(WARNING, rule.id, "inspect = false: only host and byte counts are recorded, no request")
    writes = rule.methods is None or not rule.methods <= {b"GET", b"HEAD", b"OPTIONS"}
    if rule.inspect and writes and rule.whole:
        yield Remark(NOTE, rule.id, "takes more than GET and HEAD on every path: data can leave by it, recorded")
    if rule.inspect and writes and rule.max_request_bytes > LARGE_REQUEST:
        yield Remark(NOTE, rule.id, f"lets {rule.max_request_bytes} bytes out in one request")
    if rule.ports is None:
        yield Remark(NOTE, rule.id, "any port of its hosts is reached, as far as TLS or HTTP is spoken there")
    if rule.git == "push":
        yield Remark(WARNING, rule.id, 'git = "push" lets data out into a repository')
    if policy.cutoff is None:
        return
    if rule.index == "apt" and policy.undated == "deny":
        yield Remark(WARNING, rule.id, "an apt archive has no dates: with a cut-off nothing of it passes")
    if rule.git != "none":
        yield Remark(WARNING, rule.id, "the time cut-off does not reach into git repositories")


def _repository_denied(policy: Policy, pattern: HostPattern) -> bool:
    return any(not rule.whole and any(one.overlaps(pattern) for one in rule.hosts) for rule in policy.deny)


def _covers(wide: HostPattern, narrow: HostPattern) -> bool:
    """Whether every name of ``narrow`` is one of ``wide``."""
    if wide.labels == narrow.labels:
        return wide.depth is narrow.depth or wide.depth is Depth.WITHIN
    return wide.depth is not Depth.EXACT and narrow.labels[-len(wide.labels) :] == wide.labels


def _never(policy: Policy) -> Iterator[Remark]:
    """Allow rules that a denial takes everything of."""
    whole = [rule for rule in policy.deny if rule.whole and rule.methods is None and rule.ports is None]
    for rule in policy.allow:
        for denial in whole:
            if not set(rule.phases) <= set(denial.phases) or rule.addresses or not rule.hosts:
                continue
            if all(any(_covers(wide, narrow) for wide in denial.hosts) for narrow in rule.hosts):
                yield Remark(WARNING, rule.id, f"never allows anything: rule {denial.id} denies all its hosts")


def _not_narrower(policy: Policy) -> Iterator[Remark]:
    """Rules that look like a limit and are none, because another rule allows the same host with fewer conditions."""
    for phase, tables in policy.tables.items():
        for rule in policy.allow:
            if phase not in rule.phases or (rule.whole and rule.query is None):
                continue
            for pattern in rule.hosts:
                host = Host(
                    pattern.text, pattern.labels, tuple(pattern.labels[at:] for at in range(1, len(pattern.labels)))
                )
                for other in tables.allow.rules(host):
                    if other is not rule and other.whole and other.query is None and _as_much(other, rule):
                        yield Remark(
                            WARNING, rule.id, f"is no limit for {pattern.text}: rule {other.id} allows every path of it"
                        )


def _as_much(one: Rule, two: Rule) -> bool:
    """Whether the first takes every port and method of the second."""
    ports = one.ports is None or (two.ports is not None and two.ports <= one.ports)
    return ports and (one.methods is None or (two.methods is not None and two.methods <= one.methods))
