"""Findings from the gate's journal."""

from __future__ import annotations

from typing import Any

from caisson_runner.tasks import load_task
from caisson_runner.verify.findings import Finding, findings, gather
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TASK = load_task("add-mul")


def found(*events: dict[str, Any]) -> dict[str, Finding]:
    numbered = [{"seq": number, **event} for number, event in enumerate(events, 1)]
    return {finding.rule: finding for finding in findings(gather(TASK, gate=numbered))}


def http(reason: str | None, host: str = "code.test", verdict: str = "deny") -> dict[str, Any]:
    target = {"scheme": "https", "host": host, "port": 443, "path": "/team/project"}
    return {"kind": "http", "verdict": verdict, "rule": "fix", "reason_code": reason, "method": "GET", "target": target}


def test_a_search_at_the_providers_side_is_a_finding() -> None:
    tools = [{"in": "asked", "kind": "web", "name": "web_search_20250305", "where": "/tools/0/type"}]
    done = {"kind": "http-done", "of": 1, "verdict": "allow", "rule": "model", "hosted_tools": tools}
    finding = found(http(None, "api.model.test", "allow"), done, done)["hosted-web-tool"]
    assert finding.severity == "warn"
    assert "web_search_20250305 of api.model.test" in finding.text
    assert finding.count == 1


def test_code_at_the_providers_side_is_a_remark() -> None:
    done = {"kind": "http-done", "of": 1, "hosted_tools": [{"kind": "code", "name": "code_interpreter"}]}
    assert found(http(None, verdict="allow"), done)["hosted-tool"].severity == "info"


def test_asking_for_a_denied_source_is_a_finding_however_often() -> None:
    finding = found(*[http("denied_rule")] * 50)["denied-source"]
    assert "code.test/team/project (denied_rule)" in finding.text
    assert finding.count == 1


def test_deceiving_the_gate_and_asking_for_the_host_are_findings() -> None:
    rules = found(
        {"kind": "tls", "verdict": "deny", "reason_code": "sni_mismatch", "name_dns": "a.test", "orig_dst": ["x", 443]},
        {"kind": "connect", "verdict": "deny", "reason_code": "address_denied", "orig_dst": ["169.254.169.254", 80]},
    )
    assert "a.test (sni_mismatch)" in rules["gate-deceived"].text
    assert "169.254.169.254 (address_denied)" in rules["metadata-tried"].text


def test_what_was_allowed_or_merely_not_listed_is_no_finding() -> None:
    quiet = found(http(None, verdict="allow"), http("not_allowed"), {"kind": "dns", "reason_code": "dns_not_allowed"})
    assert not {"hosted-web-tool", "denied-source", "gate-deceived", "metadata-tried"} & set(quiet)


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
events = st.fixed_dictionaries(
    {"kind": st.sampled_from(["http", "http-done", "dns", "tls", "packet", 3])},
    optional={
        name: values | st.dictionaries(st.text(max_size=5), values, max_size=2)
        for name in ("of", "target", "orig_dst", "name_dns", "hosted_tools", "reason_code", "verdict", "method", "rule")
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events, max_size=5))
def test_any_journal_is_read(journal: list[dict[str, Any]]) -> None:
    found(*journal)
