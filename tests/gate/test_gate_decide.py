"""The decision: every reason code, the order of the checks, and the routes through the gate that are pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from caisson_gate import patterns
from caisson_gate.decide import HARD, Decision, Reason, Request, decide, entropy_bits
from caisson_gate.names import from_wire
from caisson_gate.policy import Policy, PolicyError, parse
from hypothesis import given
from hypothesis import strategies as st

HEAD = 'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n'
POLICY = parse(
    b"""
schema = "caisson.gate/v1"
network_mode = "allowlist"
phases = ["build", "agent"]
allowed_hosts = ["docs.example.test", "*.cdn.example.test", "**.wide.example.test"]
[time]
deadline_s = 100
[[deny]]
id = "fix-repo"
hosts = ["code.example.test"]
paths = ["/team/project/**"]
reason = "upstream fix of this task"
[[deny]]
id = "bad"
hosts = ["**.bad.wide.example.test"]
[[deny]]
id = "no-writes"
hosts = ["code.example.test"]
methods = ["DELETE"]
[[allow]]
id = "model"
hosts = ["api.model.test"]
methods = ["POST"]
paths = ["/v1/messages"]
query = "none"
max_request_bytes = 1000
inject = "env:MODEL_KEY"
[[allow]]
id = "model-list"
hosts = ["api.model.test"]
paths = ["/v1/models"]
query = { limit = ["10"], after = "*" }
[[allow]]
id = "code"
hosts = ["code.example.test"]
methods = ["GET", "DELETE"]
[[allow]]
id = "clone"
hosts = ["git.example.test"]
git = "fetch"
[[allow]]
id = "live"
hosts = ["ws.example.test"]
websocket = true
[[allow]]
id = "pinned"
hosts = ["pinned.example.test"]
inspect = false
[[allow]]
id = "lab"
addresses = ["192.0.2.0/29", "2001:db8::/64"]
ports = [443, 5432]
[[allow]]
id = "database"
addresses = ["198.51.100.7"]
ports = [5432]
inspect = false
[[allow]]
id = "build-only"
hosts = ["build.example.test"]
phases = ["build"]
"""
)
DOCS = b"docs.example.test"


def ask(kind: str, port: int = 443, policy: Policy = POLICY, **known: Any) -> Decision:
    return decide(policy, Request(kind, port, **known))  # type: ignore[arg-type]


def get(name: bytes = DOCS, path: bytes = b"/", policy: Policy = POLICY, **known: Any) -> Decision:
    """A whole HTTPS request, every name of which agrees unless told otherwise."""
    whole: dict[str, Any] = {
        "scheme": "https",
        "name_dns": name,
        "name_sni": name,
        "name_host": name,
        "method": b"GET",
        "path": path,
        **known,
    }
    return decide(policy, Request(whole.pop("kind", "http"), whole.pop("port", 443), **whole))


def told(decision: Decision) -> tuple[str, str | None]:
    return decision.rule, None if decision.allowed else str(decision.reason)


# what is allowed


def test_an_allowed_name_passes_every_step_by_the_same_rule() -> None:
    steps = [
        ask("dns", 53, name_dns=DOCS),
        ask("connect", name_dns=DOCS),
        ask("connect", name_connect=DOCS + b":443"),
        ask("tls", name_dns=DOCS, name_sni=DOCS),
        get(),
        get(port=80, scheme="http", name_sni=None),
    ]
    assert [told(step) for step in steps] == [("allowed_hosts", None)] * len(steps)
    assert all(step.host is not None and step.host.text == "docs.example.test" for step in steps)


def test_the_decision_says_what_to_dial_and_what_to_send() -> None:
    found = get(b"DOCS.example.test.", b"/a/./%62?".rstrip(b"?"), name_host=b"docs.EXAMPLE.test:443")
    assert found.allowed
    assert found.host is not None
    assert (found.host.authority, found.port, found.path) == ("docs.example.test", 443, b"/a/b")


def test_limits_and_credentials_are_the_rules() -> None:
    found = get(b"api.model.test", b"/v1/messages", method=b"POST", length=1000)
    assert found.allowed
    assert found.max_request_bytes == 1000
    assert found.inject is not None
    assert (found.inject.env, found.inject.header, found.inject.prefix) == ("MODEL_KEY", "authorization", "Bearer ")
    assert get(b"api.model.test", b"/v1/models").inject is None


def test_a_listed_address_is_reached_by_its_literal_in_any_spelling() -> None:
    for spelled in (b"192.0.2.1:443", b"0xC0000201:443", b"[::ffff:192.0.2.1]:443", b"[2001:DB8::7]:443"):
        assert told(ask("connect", name_connect=spelled)) == ("lab", None), spelled


# each reason code


def test_not_allowed_is_what_no_rule_speaks_of() -> None:
    for found in (ask("connect", name_dns=b"other.test"), get(b"other.test")):
        assert told(found) == ("default", "not_allowed")
        assert found.status == 403


def test_denied_rule_wins_over_allow_and_names_the_rule() -> None:
    found = get(b"code.example.test", b"/team/project/pull/7")
    assert told(found) == ("fix-repo", "denied_rule")
    assert found.detail == "upstream fix of this task"
    assert told(get(b"x.bad.wide.example.test")) == ("bad", "denied_rule")
    assert told(ask("connect", name_dns=b"bad.wide.example.test")) == ("bad", "denied_rule")
    assert told(get(b"code.example.test", b"/x", method=b"DELETE")) == ("no-writes", "denied_rule")
    assert get(b"code.example.test", b"/team/other").allowed


@pytest.mark.parametrize(
    "path", [b"/Team/Project/pull/1", b"/team/./project", b"/x/../team/project/", b"/team/%70roject"]
)
def test_no_spelling_of_a_path_gets_round_a_denial(path: bytes) -> None:
    assert told(get(b"code.example.test", path)) == ("fix-repo", "denied_rule")


def test_method_not_allowed() -> None:
    assert told(get(method=b"POST")) == ("allowed_hosts", "method_not_allowed")
    assert told(get(b"api.model.test", b"/v1/messages")) == ("model", "method_not_allowed")


def test_path_not_allowed() -> None:
    assert told(get(b"api.model.test", b"/v1/files", method=b"POST")) == ("model", "path_not_allowed")


@pytest.mark.parametrize(
    ("query", "allowed"),
    [
        (None, True),
        (b"", True),
        (b"limit=10", True),
        (b"limit=10&after=x%20y", True),
        (b"limit=11", False),
        (b"limit=10&limit=99", False),
        (b"q=nonce", False),
        (b"LIMIT=10", False),
        (b"limit=10;x=1", False),
        (b"limit=%zz", False),
    ],
)
def test_a_query_outside_the_rules_table_is_refused(query: bytes | None, allowed: bool) -> None:
    found = get(b"api.model.test", b"/v1/models", query=query)
    assert found.allowed is allowed
    assert allowed or found.reason is Reason.PATH_NOT_ALLOWED


def test_port_not_allowed_is_told_at_connect() -> None:
    for port in (22, 25, 8080, 853):
        assert told(ask("connect", port, name_connect=DOCS)) == ("allowed_hosts", "port_not_allowed")
    assert told(ask("connect", 80, name_dns=b"api.model.test")) == ("model", "port_not_allowed")


def test_an_address_that_no_rule_lists_is_an_ip_literal() -> None:
    for literal in (b"198.51.100.9", b"3325256713", b"[2001:db8:1::1]:443", b"0306.063.0144.011:443"):
        assert told(ask("connect", name_connect=literal)) == ("default", "ip_literal"), literal


@pytest.mark.parametrize(
    "literal",
    [
        b"127.0.0.1",
        b"2130706433",
        b"0x7f.1",
        b"0",
        b"169.254.169.254",
        b"0xA9FEA9FE",
        b"[::1]",
        b"[::ffff:7f00:1]",
        b"[64:ff9b::7f00:1]",
        b"[2002:7f00:1::]",
        b"[fd00:ec2::254]",
        b"[fe80::1]",
        b"10.1.1.1",
        b"100.100.100.200",
        b"168.63.129.16",
        b"255.255.255.255",
        b"[ff02::fb]",
        b"localhost",
        b"LocalHost.",
        b"x.localhost",
        b"metadata.google.internal",
    ],
)
def test_address_denied_judges_the_class_in_every_spelling(literal: bytes) -> None:
    assert told(ask("connect", 80, name_connect=literal)) == ("hard", "address_denied")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%lo", "x"]
)
def test_an_allowed_name_that_resolves_to_a_denied_address_is_refused(address: str) -> None:
    assert told(get(address=address)) == ("hard", "address_denied")
    assert get(address="203.0.113.5").allowed


def test_a_literal_is_dialled_as_it_stands() -> None:
    assert told(ask("connect", name_connect=b"192.0.2.1", address="192.0.2.2")) == ("hard", "address_denied")


def test_private_addresses_open_only_by_word() -> None:
    policy = parse((HEAD + 'allowed_hosts = ["a.test"]\n[addresses]\ndeny = []').encode())
    assert ask("connect", policy=policy, name_dns=b"a.test", address="10.0.0.1").allowed
    assert not ask("connect", policy=policy, name_dns=b"a.test", address="127.0.0.1").allowed


def test_sni_mismatch_against_dns_and_connect_names() -> None:
    assert told(ask("tls", name_dns=DOCS, name_sni=b"other.test")) == ("hard", "sni_mismatch")
    assert told(ask("tls", name_connect=DOCS + b":443", name_sni=b"a.cdn.example.test")) == ("hard", "sni_mismatch")
    assert told(ask("tls", name_connect=b"192.0.2.1:443", name_sni=DOCS)) == ("hard", "sni_mismatch")
    assert ask("tls", name_dns=DOCS, name_sni=None).allowed, "without one the name of the connection counts"
    assert ask("tls", name_dns=DOCS, name_sni=b"DOCS.EXAMPLE.TEST").allowed


@pytest.mark.parametrize(
    "host", [b"other.test", b"docs.example.test:80", b"docs.example.test:8443", b"a.cdn.example.test", b"192.0.2.1"]
)
def test_fronting_is_a_host_mismatch_on_every_request(host: bytes) -> None:
    found = get(name_host=host)
    assert told(found) == ("hard", "host_mismatch")
    assert found.status == 421


def test_names_of_the_connection_that_differ_are_a_mismatch() -> None:
    assert told(ask("connect", name_dns=DOCS, name_connect=b"a.cdn.example.test:443")) == ("hard", "host_mismatch")
    assert told(ask("connect", 443, name_connect=DOCS + b":80")) == ("hard", "host_mismatch")
    assert told(get(name_sni=None, name_dns=None, name_connect=b"192.0.2.1:443")) == ("hard", "host_mismatch")


@pytest.mark.parametrize(
    "host",
    [
        b"[docs.example.test]",
        b"u@docs.example.test",
        b"docs.example.test\\@x.test",
        b"docs%2eexample.test",
        b"a b",
        b"",
        b"\x00",
    ],
)
def test_a_malformed_host_is_400_and_never_unlisted(host: bytes) -> None:
    for found in (
        ask("connect", name_connect=host),
        ask("tls", name_dns=DOCS, name_sni=host),
        get(name_host=host),
        get(host),
    ):
        assert told(found) == ("hard", "malformed")
        assert found.status == 400


def test_malformed_holds_in_every_mode() -> None:
    for mode in ("record", "denylist"):
        policy = parse(f'schema = "caisson.gate/v1"\nnetwork_mode = "{mode}"\n'.encode())
        assert told(get(b"a%00.test", policy=policy)) == ("hard", "malformed")
        assert told(get(path=b"/a//b", policy=policy)) == ("hard", "malformed")


@pytest.mark.parametrize(
    "known",
    [
        {"path": b"/a%2fb"},
        {"path": b"/..%2f"},
        {"path": None},
        {"method": None},
        {"method": b"get"},
        {"method": b"GET /"},
        {"name_host": None},
        {"query": b"a b"},
    ],
)
def test_a_request_head_that_is_none_is_malformed(known: dict[str, Any]) -> None:
    path = known.pop("path", b"/")
    assert told(get(path=path, **known)) == ("hard", "malformed")


def test_nothing_that_names_the_target_is_malformed() -> None:
    assert told(ask("connect")) == ("hard", "malformed")
    assert told(get(name_dns=None)) == ("hard", "malformed"), "a Host alone names nothing"


def test_after_deadline_comes_before_everything() -> None:
    for found in (get(now=100.1), ask("dns", 53, name_dns=b"\xff", now=1e9), ask("udp", now=101.0)):
        assert told(found) == ("hard", "after_deadline")
    assert get(now=100.0).allowed


def test_too_large_is_told_with_the_rule() -> None:
    found = get(b"api.model.test", b"/v1/messages", method=b"POST", length=1001)
    assert told(found) == ("model", "too_large")
    assert found.status == 413


@pytest.mark.parametrize(
    ("kind", "port", "known"),
    [
        ("udp", 443, {}),
        ("udp", 9999, {"name_dns": DOCS}),
        ("tcp", 443, {"name_dns": DOCS}),
        ("tcp", 5432, {"name_connect": b"192.0.2.1:5432"}),
        ("tcp", 443, {"name_dns": b"pinned.example.test"}),
    ],
)
def test_what_is_neither_tls_nor_http_is_a_protocol_refusal(kind: str, port: int, known: dict[str, Any]) -> None:
    assert ask(kind, port, **known).reason is Reason.PROTOCOL


def test_plain_http_on_443_and_tls_on_80_are_protocol_refusals() -> None:
    assert told(get(scheme="http", name_sni=None, name_host=DOCS + b":443")) == ("hard", "protocol")
    assert told(get(port=80, name_host=DOCS + b":80")) == ("hard", "protocol")
    assert told(get(scheme="ftp", name_host=DOCS + b":443")) == ("hard", "protocol")


def test_a_websocket_needs_a_rule_that_says_so() -> None:
    assert told(get(kind="ws", scheme="wss")) == ("allowed_hosts", "protocol")
    found = get(b"ws.example.test", kind="ws", scheme="wss")
    assert found.allowed
    assert found.websocket
    assert not get().websocket


def test_a_tunnel_inside_a_connection_is_refused() -> None:
    assert told(get(method=b"CONNECT")) == ("hard", "protocol")


# names in DNS


@pytest.mark.parametrize(
    "name",
    [
        b"other.test",
        b"cdn.example.test",
        b"example.test",
        b"test",
        b"localhost",
        b"metadata.google.internal",
        b"xdocs.example.test",
        b"docs.example.test.evil.test",
        b"bad.wide.example.test",
        b"x.bad.wide.example.test",
        b"192.0.2.1",
    ],
)
def test_dns_answers_no_name_that_no_rule_allows(name: bytes) -> None:
    assert ask("dns", 53, name_dns=name).reason is Reason.DNS_NOT_ALLOWED


@pytest.mark.parametrize("name", [None, b"", b"a..b", b"a\x00.test", b"\xc3\xa4\xff", b"x" * 64 + b".test"])
def test_a_question_that_holds_no_name_is_dns_malformed(name: bytes | None) -> None:
    found = ask("dns", 53, name_dns=name)
    assert told(found) == ("hard", "dns_malformed")


def test_a_label_that_holds_a_dot_matches_no_wildcard() -> None:
    with pytest.raises(ValueError, match="label"):
        from_wire((b"x.cdn", b"example", b"test"))


def test_a_name_below_a_wildcard_carries_no_more_than_the_policy_says() -> None:
    assert ask("dns", 53, name_dns=b"assets-7.cdn.example.test").allowed
    long = b"mfrggzdfmztwq2lknnwg23tpobyxe43uov3ho6dzpiydcmrtgq2tmnzyhe.cdn.example.test"
    found = ask("dns", 53, name_dns=long)
    assert told(found) == ("hard", "dns_not_allowed")
    assert "bits" in found.detail
    many = b".".join([b"abcdefghij"] * 8) + b".cdn.example.test"
    assert not ask("dns", 53, name_dns=many).allowed


def test_an_exact_name_is_answered_however_long_it_is() -> None:
    name = "mfrggzdfmztwq2lknnwg23tpobyxe43uov3ho6dzpiydcmrtgq2tmnzyhe.a.test"
    policy = parse((HEAD + f'allowed_hosts = ["{name}"]').encode())
    assert ask("dns", 53, policy=policy, name_dns=name.encode()).allowed


def test_dns_can_answer_all_so_that_the_attempt_is_seen_or_none() -> None:
    everything = replace(POLICY, dns_answer="all-synthetic")
    assert told(ask("dns", 53, policy=everything, name_dns=b"other.test")) == ("mode", None)
    assert not ask("connect", policy=everything, name_dns=b"other.test").allowed
    assert not ask("dns", 53, policy=everything, name_dns=b"intranet").allowed
    assert not ask("dns", 53, policy=everything, name_dns=b"bad.wide.example.test").allowed
    assert not ask("dns", 53, policy=replace(POLICY, dns_answer="none"), name_dns=DOCS).allowed


def test_entropy_counts_what_a_label_could_carry() -> None:
    assert entropy_bits("aaaaaaaa") == 0
    assert entropy_bits("abcdefgh") == 24


# host patterns


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (b"docs.example.test", True),
        (b"evildocs.example.test", False),
        (b"docs.example.test.evil.test", False),
        (b"docs.example.testx", False),
        (b"a.docs.example.test", False),
        (b"cdn.example.test", False),
        (b"a.cdn.example.test", True),
        (b"a.b.cdn.example.test", True),
        (b"acdn.example.test", False),
        (b"wide.example.test", True),
        (b"a.wide.example.test", True),
        (b"awide.example.test", False),
        (b"DOCS.EXAMPLE.TEST.", True),
        ("docs\u3002example\u3002test".encode(), True),
        (b"docs", False),
    ],
)
def test_host_patterns_match_whole_labels(name: bytes, allowed: bool) -> None:
    assert get(name).allowed is allowed


# content


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (b"/dns-query", {}),
        (b"/dns-query", {"query": b"dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB"}),
        (b"/resolve", {"query": b"dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB"}),
        (b"/resolve", {"query": b"name=nonce.test&type=TXT"}),
        (b"/x", {"content_type": b"application/dns-message"}),
        (b"/x", {"accept": b"application/DNS-json, */*"}),
        (b"/a/DNS-Query/", {}),
    ],
)
def test_dns_inside_https_is_refused_on_an_allowed_host(path: bytes, known: dict[str, Any]) -> None:
    assert told(get(path=path, **known)) == ("allowed_hosts", "denied_rule")


GIT = [
    (b"/t/p/info/refs", {"query": b"service=git-upload-pack"}),
    (b"/t/p.git/info/refs", {}),
    (b"/t/p/git-upload-pack", {"method": b"POST"}),
    (b"/t/p/objects/info/packs", {}),
    (b"/t/p/objects/ab/" + b"0" * 38, {}),
    (b"/t/p/objects/pack/pack-" + b"0" * 40 + b".pack", {}),
    (b"/t/p/.git/config", {}),
    (b"/t/p/HEAD", {}),
    (b"/t/p.git/info/lfs/objects/batch", {"method": b"POST"}),
]


@pytest.mark.parametrize(("path", "known"), GIT)
def test_git_over_http_needs_a_rule_that_says_so(path: bytes, known: dict[str, Any]) -> None:
    refused = get(path=path, **known)
    assert not refused.allowed
    assert refused.reason in (Reason.DENIED_RULE, Reason.METHOD_NOT_ALLOWED)
    assert told(get(b"git.example.test", path, **known)) == ("clone", None)


def test_a_rule_for_fetching_does_not_let_push() -> None:
    for path, known in (
        (b"/t/p/info/refs", {"query": b"service=git-receive-pack"}),
        (b"/t/p/git-receive-pack", {"method": b"POST", "content_type": b"application/x-git-receive-pack-request"}),
    ):
        assert not get(b"git.example.test", path, **known).allowed


def test_a_post_that_is_no_git_is_not_let_through_by_a_git_rule() -> None:
    assert told(get(b"git.example.test", b"/api", method=b"POST")) == ("clone", "method_not_allowed")


FORGE = parse(
    b"""
schema = "caisson.gate/v1"
network_mode = "allowlist"
[[deny]]
id = "fix"
repository = "github.com/Team/Project"
[[deny]]
id = "own"
repository = "forge.test/group/sub/thing.git"
[[allow]]
id = "forge"
hosts = [
  "github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com", "cdn.jsdelivr.net",
  "team.github.io", "**.forge.test",
]
methods = ["GET", "POST"]
git = "fetch"
"""
)


@pytest.mark.parametrize(
    "url",
    [
        "github.com/team/project",
        "github.com/Team/Project/pull/7.diff",
        "github.com/team/project.git/info/refs",
        "github.com/team/project/archive/refs/heads/main.zip",
        "github.com/search",
        "api.github.com/repos/team/project/commits",
        "api.github.com/graphql",
        "api.github.com/search/code",
        "codeload.github.com/team/project/zip/refs/heads/main",
        "raw.githubusercontent.com/team/project/main/fix.py",
        "cdn.jsdelivr.net/gh/team/project@main/fix.py",
        "team.github.io/project/fix",
        "forge.test/group/sub/thing/-/merge_requests/1",
        "forge.test/api/v4/projects/12/repository/files",
        "pages.forge.test/thing/",
    ],
)
def test_a_denied_repository_is_denied_wherever_it_can_be_read(url: str) -> None:
    host, _, path = url.partition("/")
    found = get(host.encode(), b"/" + path.encode(), policy=FORGE)
    assert found.reason is Reason.DENIED_RULE
    assert found.rule in ("fix", "own")


@pytest.mark.parametrize(
    "url",
    [
        "github.com/team/other",
        "github.com/other/project",
        "github.com/team/project-docs/x",
        "api.github.com/repos/team/other",
        "cdn.jsdelivr.net/gh/team/other@1/x",
        "forge.test/group/thing",
    ],
)
def test_other_repositories_stay_as_they_are_allowed(url: str) -> None:
    host, _, path = url.partition("/")
    assert get(host.encode(), b"/" + path.encode(), policy=FORGE).allowed


# opaque hosts, phases, modes


def test_an_opaque_host_is_spliced_and_says_so_at_every_step() -> None:
    pinned = b"pinned.example.test"
    assert ask("connect", name_dns=pinned).opaque
    assert ask("tls", name_dns=pinned, name_sni=pinned).opaque
    assert told(ask("tls", name_dns=pinned, name_sni=DOCS)) == ("hard", "sni_mismatch")
    assert ask("tcp", 5432, name_connect=b"198.51.100.7:5432").opaque
    assert not ask("connect", name_dns=DOCS).opaque


def test_a_rule_counts_in_its_phases_only() -> None:
    build = b"build.example.test"
    assert get(build, phase="build").allowed
    assert told(get(build, phase="agent")) == ("default", "not_allowed")
    assert get(phase="build").allowed
    assert told(get(phase="verify")) == ("mode", "not_allowed")
    assert not ask("dns", 53, name_dns=DOCS, phase="verify").allowed
    assert not get(phase="night").allowed


def test_no_network_refuses_by_mode() -> None:
    policy = parse(b'schema = "caisson.gate/v1"')
    assert told(get(policy=policy)) == ("mode", "not_allowed")
    assert told(ask("dns", 53, policy=policy, name_dns=DOCS)) == ("mode", "dns_not_allowed")


DENYLIST = parse(
    b"""
schema = "caisson.gate/v1"
network_mode = "denylist"
[[deny]]
id = "fix"
hosts = ["**.fix.test"]
[[deny]]
id = "net"
addresses = ["198.51.100.0/24"]
[[allow]]
id = "small"
hosts = ["up.test"]
methods = ["PUT"]
max_request_bytes = 10
"""
)


def test_a_denylist_lets_everything_else_through_on_the_ports_of_the_web() -> None:
    assert get(b"any.test", method=b"POST", policy=DENYLIST).allowed
    assert told(get(b"a.fix.test", policy=DENYLIST)) == ("fix", "denied_rule")
    assert told(ask("dns", 53, policy=DENYLIST, name_dns=b"fix.test")) == ("fix", "dns_not_allowed")
    assert told(ask("connect", 22, policy=DENYLIST, name_dns=b"any.test")) == ("default", "port_not_allowed")
    assert told(ask("connect", policy=DENYLIST, name_connect=b"198.51.100.7")) == ("net", "denied_rule")
    assert told(ask("connect", policy=DENYLIST, name_connect=b"203.0.113.7")) == ("default", "ip_literal")
    assert told(get(b"intranet", policy=DENYLIST)) == ("default", "not_allowed")
    assert told(get(b"any.test", b"/dns-query", policy=DENYLIST)) == ("content", "denied_rule")
    assert told(get(b"up.test", method=b"PUT", length=11, policy=DENYLIST)) == ("small", "too_large")


def test_a_denial_of_addresses_counts_for_what_a_name_resolves_to() -> None:
    for address in ("198.51.100.7", "::ffff:198.51.100.7", "64:ff9b::c633:6407", "2002:c633:6407::"):
        assert told(get(b"any.test", policy=DENYLIST, address=address)) == ("net", "address_denied"), address
    assert get(b"any.test", policy=DENYLIST, address="203.0.113.7").allowed
    assert DENYLIST.refuses("198.51.100.7", "agent") == ("net", "is denied by 198.51.100.0/24")
    assert DENYLIST.refuses("203.0.113.7", "agent") is None
    assert DENYLIST.refuses("nonsense", "agent") == ("hard", "is no address")


def test_record_lets_names_and_addresses_through_but_never_a_denied_class() -> None:
    policy = parse(b'schema = "caisson.gate/v1"\nnetwork_mode = "record"')
    assert told(get(b"any.test", method=b"PUT", policy=policy)) == ("mode", None)
    assert ask("connect", 8080, policy=policy, name_connect=b"203.0.113.7:8080").allowed
    assert told(ask("connect", policy=policy, name_connect=b"169.254.169.254")) == ("hard", "address_denied")
    assert told(get(name_host=b"other.test", policy=policy)) == ("hard", "host_mismatch")
    assert ask("tcp", 9999, policy=policy, name_dns=b"any.test").reason is Reason.PROTOCOL


def test_report_lets_through_what_rules_deny_and_says_so_but_no_hard_denial() -> None:
    policy = replace(POLICY, action="report")
    for found in (
        get(b"other.test", policy=policy),
        get(method=b"POST", policy=policy),
        get(b"code.example.test", b"/team/project", policy=policy),
        ask("dns", 53, policy=policy, name_dns=b"other.test"),
        ask("connect", policy=policy, name_connect=b"203.0.113.7"),
    ):
        assert found.allowed
        assert found.reported
        assert found.reason is not None
    for found in (
        get(b"a%00", policy=policy),
        get(name_host=b"other.test", policy=policy),
        ask("tls", policy=policy, name_dns=DOCS, name_sni=b"x.test"),
        ask("connect", policy=policy, name_connect=b"127.0.0.1"),
        get(now=101.0, policy=policy),
        get(phase="verify", policy=policy),
    ):
        assert not found.allowed


def test_a_block_can_look_like_an_absence() -> None:
    policy = replace(POLICY, deny_status=404)
    assert get(b"other.test", policy=policy).status == 404


# whatever a box sends

raw = st.none() | st.binary(max_size=40) | st.sampled_from([DOCS, b"192.0.2.1", b"api.model.test", b"[::1]:443"])
requests = st.builds(
    Request,
    kind=st.sampled_from(["dns", "connect", "tls", "http", "ws", "tcp", "udp"]),
    port=st.integers(0, 70_000),
    scheme=st.sampled_from(["", "http", "https", "ws", "wss", "gopher"]),
    name_dns=raw,
    name_connect=raw,
    name_sni=raw,
    name_host=raw,
    address=st.none() | st.text(max_size=20) | st.ip_addresses().map(str),
    method=raw,
    path=raw | st.just(b"/v1/messages"),
    query=raw,
    length=st.none() | st.integers(0, 10**12),
    now=st.floats(0, 200),
    phase=st.sampled_from(["build", "agent", "verify"]),
    content_type=raw,
    accept=raw,
)


@given(
    requests, st.sampled_from(["allowlist", "denylist", "record", "no-network"]), st.sampled_from(["enforce", "report"])
)
def test_any_request_gets_a_decision_and_none_that_is_refused_hard_passes(
    request: Request, mode: str, action: str
) -> None:
    found = decide(replace(POLICY, network_mode=mode, action=action), request)
    assert found.allowed is (found.reason is None or found.reported)
    if found.allowed:
        assert found.reason not in HARD
        assert found.host is not None
        assert mode != "no-network"
    else:
        assert found.status in (400, 403, 404, 413, 421)
        assert found.rule


@given(requests)
def test_what_enforce_allows_report_allows_and_no_mode_opens_a_closed_phase(request: Request) -> None:
    if decide(POLICY, request).allowed:
        assert decide(replace(POLICY, action="report"), request).allowed
        assert request.phase != "verify"


paths = st.lists(st.sampled_from(["a", "b", "C", "*", "**", "a*", ""]), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(part for at, part in enumerate(parts) if part or at == len(parts) - 1)
)
crowd = st.lists(st.tuples(st.booleans(), paths, st.sampled_from(["GET", "POST"])), min_size=1, max_size=12)


@given(crowd, st.lists(st.sampled_from(["a", "b", "c", "A", "ab"]), max_size=3), st.sampled_from([b"GET", b"POST"]))
def test_many_rules_of_one_host_decide_as_if_each_were_asked(
    rules: list[tuple[bool, str, str]], path: list[str], method: bytes
) -> None:
    tables = []
    for number, (denies, glob, verb) in enumerate(rules):
        kind = "deny" if denies else "allow"
        tables.append(f'[[{kind}]]\nid = "r{number}"\nhosts = ["a.test"]\npaths = ["{glob}"]\nmethods = ["{verb}"]\n')
    try:
        text = (HEAD + "".join(tables)).encode()
        plain, looked_up = parse(text), parse(text)
    except PolicyError:
        return  # two ** in a row, an empty segment
    found = get(b"a.test", "/".join(["", *path]).encode(), plain, method=method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "FEW", 0)
        assert get(b"a.test", "/".join(["", *path]).encode(), looked_up, method=method) == found


def test_a_host_with_thousands_of_rules_for_every_path_needs_no_table_of_their_product() -> None:
    rules = [f'[[allow]]\nid = "w{at}"\nhosts = ["a.test"]\npaths = ["/**/w{at}"]\n' for at in range(1200)]
    rules += [f'[[allow]]\nid = "p{at}"\nhosts = ["a.test"]\npaths = ["/p{at}"]\n' for at in range(1200)]
    policy = parse((HEAD + "".join(rules)).encode())
    assert told(get(b"a.test", b"/p7", policy)) == ("p7", None)
    assert told(get(b"a.test", b"/x/w1199", policy)) == ("w1199", None)
    assert not get(b"a.test", b"/p7/x", policy).allowed
