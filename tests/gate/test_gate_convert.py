"""Other tools' files: what they allow is what ours allows, and what has no counterpart stays closed and is told."""

from __future__ import annotations

import json

import pytest
from caisson_gate.convert import convert, harbor_policy
from caisson_gate.decide import Reason, Request, decide
from caisson_gate.document import toml
from caisson_gate.errors import PolicyError
from caisson_gate.policy import Policy, parse
from hypothesis import given
from hypothesis import strategies as st


def passes(policy: Policy, name: str, port: int = 443, phase: str = "agent", **known: object) -> bool:
    """Whether a request to the name goes through every step."""
    raw = name.encode()
    literal = name[0].isdigit()
    names = {"name_connect": raw} if literal else {"name_dns": raw}
    scheme = "http" if port == 80 else "https"
    host = raw if port in (80, 443) else raw + f":{port}".encode()
    steps = [] if literal else [Request("dns", 53, name_dns=raw, phase=phase)]  # type: ignore[arg-type]
    steps.append(Request("connect", port, phase=phase, **names))  # type: ignore[arg-type]
    whole = {"method": b"POST", "path": b"/any", "scheme": scheme, "name_host": host, **known}
    steps.append(Request("http", port, phase=phase, **names, **whole))  # type: ignore[arg-type]
    return all(decide(policy, step).allowed for step in steps)


def test_harbors_allow_list_is_by_host_alone() -> None:
    policy = harbor_policy("allowlist", ["Docs.Example.test.", "*.cdn.example.test", "192.0.2.0/24"])
    assert passes(policy, "docs.example.test")
    assert passes(policy, "docs.example.test", 80)
    assert passes(policy, "docs.example.test", 8443, method=b"DELETE", length=10**9)
    assert passes(policy, "a.cdn.example.test")
    assert passes(policy, "192.0.2.9")
    assert not passes(policy, "cdn.example.test")
    assert not passes(policy, "other.test")
    assert not passes(policy, "docs.example.test", phase="verify")
    assert parse(toml(policy).encode()) == policy


@pytest.mark.parametrize(
    "entry",
    [
        "https://a.test",
        "a.test/x",
        "a.test:443",
        "localhost",
        "127.0.0.1",
        "10.0.0.0/8",
        "192.0.2.1/24",
        "*",
        "*.test",
        "a*.b.test",
    ],
)
def test_what_a_box_cannot_be_held_to_rejects_the_task(entry: str) -> None:
    with pytest.raises(PolicyError):
        harbor_policy("allowlist", [entry])


def test_harbors_other_modes() -> None:
    assert not passes(harbor_policy("no-network"), "a.test")
    assert not passes(harbor_policy("allowlist"), "a.test")
    assert passes(harbor_policy("public"), "a.test")
    assert not passes(harbor_policy("public"), "169.254.169.254")
    with pytest.raises(PolicyError):
        harbor_policy("open")


def test_a_denylist_blocks_names_with_what_is_below_and_urls_with_what_is_below() -> None:
    policy = harbor_policy(
        "denylist", (), ["fix.test", "*.raw.test", "203.0.113.9"], blocked_urls=["https://code.test/t/p*"]
    )
    assert passes(policy, "other.test")
    for name in ("fix.test", "a.fix.test", "raw.test", "a.raw.test", "203.0.113.9"):
        assert not passes(policy, name), name
    assert passes(policy, "code.test", path=b"/other")
    assert not passes(policy, "code.test", path=b"/T/p/pull/1")
    assert parse(toml(policy).encode()).sha256 == policy.sha256


def test_a_task_file_gives_its_agents_policy_and_its_verifiers() -> None:
    text = b"""
version = "1.0"
[environment]
network_mode = "allowlist"
allowed_hosts = ["base.test"]
[agent]
network_mode = "allowlist"
allowed_hosts = ["api.model.test"]
"""
    found = convert(text, "harbor", "task.toml")
    assert passes(found.policy, "api.model.test")
    assert not passes(found.policy, "base.test")
    assert passes(found.policy, "base.test", phase="verify")
    assert convert(b"[environment]\nallow_internet = false", "harbor", "t").policy.network_mode == "no-network"
    public = convert(b"[environment]", "harbor", "t")
    assert public.policy.network_mode == "record"
    assert any("record" in warning for warning in public.warnings)
    for broken in (b"= 1", b"environment = 1", b"[environment]\nallowed_hosts = 'a'", b"[agent]\nnetwork_mode = 1"):
        with pytest.raises(PolicyError):
            convert(broken, "harbor", "t")


def test_sandbox_runtime_settings() -> None:
    settings = {
        "network": {
            "allowedDomains": [
                "docs.example.test",
                "*.cdn.example.test",
                "api.test:8443",
                "localhost",
                "[2001:db8::1]:443",
            ],
            "deniedDomains": ["bad.cdn.example.test", "*.worse.cdn.example.test", "*:25"],
            "allowLocalBinding": True,
        },
        "filesystem": {},
    }
    found = convert(json.dumps(settings).encode(), "sandbox-runtime", "settings.json")
    assert passes(found.policy, "docs.example.test", 9000)
    assert passes(found.policy, "a.cdn.example.test")
    assert not passes(found.policy, "bad.cdn.example.test")
    assert not passes(found.policy, "a.worse.cdn.example.test")
    assert passes(found.policy, "api.test", 8443)
    assert not passes(found.policy, "api.test")
    assert decide(found.policy, Request("connect", 443, name_connect=b"[2001:db8::1]:443")).allowed
    assert [word for word in ("localhost", "allowLocalBinding", "*:25") if any(word in w for w in found.warnings)] == [
        "localhost",
        "allowLocalBinding",
        "*:25",
    ]
    closed = convert(b'{"network": {"allowedDomains": ["a.test"], "deniedDomains": ["*"]}}', "sandbox-runtime", "s")
    assert closed.policy.network_mode == "no-network"
    for broken in (b"", b"[]", b"{}", b'{"network": 1}', b'{"network": {"allowedDomains": "a"}}', b"[" * 100_000):
        with pytest.raises(PolicyError):
            convert(broken, "sandbox-runtime", "s")


WORKFLOW = b"""---
on: push
network:
  allowed:
    - defaults              # its own hosts
    - python
    - node
    - "api.example.test"
    - 'https://*.secure.example.test'
    - http://plain.example.test
  blocked:
    - node
    - cdn.api.example.test
  firewall:
    log-level: info
engine: x
---
# Task
network: not this one
"""


def test_a_workflows_front_matter() -> None:
    found = convert(WORKFLOW, "gh-aw", "flow.md")
    assert found.bundles == ("pip",)
    assert passes(found.policy, "api.example.test")
    assert passes(found.policy, "x.api.example.test", 80)
    assert not passes(found.policy, "a.cdn.api.example.test")
    assert passes(found.policy, "a.secure.example.test")
    assert not passes(found.policy, "a.secure.example.test", 80)
    assert passes(found.policy, "plain.example.test", 80)
    assert not passes(found.policy, "plain.example.test")
    assert any("defaults" in warning for warning in found.warnings)
    assert any("firewall" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (b"---\nnetwork: defaults\n---\n", "allowlist"),
        (b"---\nnetwork: {}\n---\n", "no-network"),
        (b"---\non: push\n---\n", "allowlist"),
        (b"---\nnetwork:\n  allowed: [a.test, 'b.test']\n---\n", "allowlist"),
        (b"---\nnetwork:\n  allowed:\n  - a.test\n---\n", "allowlist"),
    ],
)
def test_the_short_forms_of_front_matter(text: bytes, mode: str) -> None:
    found = convert(text, "gh-aw", "flow.md")
    assert found.policy.network_mode == mode
    assert passes(found.policy, "a.test") is (b"a.test" in text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"# no front matter",
        b"---\nnetwork:\n  allowed:\n",
        b"---\nnetwork:\n\tallowed: [a]\n---\n",
        b"---\nnetwork:\n  allowed: &x [a.test]\n---\n",
        b"---\nnetwork:\n  allowed: |\n    a.test\n---\n",
        b"---\nnetwork:\n  allowed:\n    - *x\n---\n",
        b"---\nnetwork:\n  allowed: [a.test]\n  allowed: [b.test]\n---\n",
        b"---\nnetwork: [a]\n---\n",
        b"\xff",
    ],
)
def test_front_matter_that_is_not_understood_is_refused(text: bytes) -> None:
    with pytest.raises(PolicyError):
        convert(text, "gh-aw", "flow.md")


@given(
    st.sampled_from(["harbor", "sandbox-runtime", "gh-aw"]),
    st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
)
def test_any_bytes_convert_or_are_a_policy_error(kind: str, data: bytes) -> None:
    for text in (data, b"---\nnetwork:\n  allowed:\n" + data + b"\n---\n", b"[environment]\n" + data):
        try:
            convert(text, kind, "x")
        except PolicyError as error:
            assert "\n" not in str(error)


def test_a_udp_datagram_passes_under_no_harbor_mode() -> None:
    for mode in ("public", "allowlist", "denylist"):
        assert decide(harbor_policy(mode), Request("udp", 443)).reason is Reason.PROTOCOL
