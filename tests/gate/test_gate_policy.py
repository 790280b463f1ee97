"""Policy files: read strictly, and whatever is wrong means closed, with one line that says where and what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from caisson_gate.decide import Request, decide
from caisson_gate.document import toml
from caisson_gate.load import load
from caisson_gate.policy import MAX_BYTES, PolicyError, closed, parse
from hypothesis import given
from hypothesis import strategies as st

HEAD = 'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n'
WHOLE = """
schema = "caisson.gate/v1"
network_mode = "allowlist"
action = "enforce"
deny_status = 404
phases = ["build", "agent"]
allowed_hosts = ["docs.example.test", "*.cdn.example.test", "**.wide.example.test"]
[time]
cutoff = 2025-03-01T00:00:00+02:00
undated = "allow-recorded"
deadline_s = 3600
[[deny]]
id = "fix-repo"
hosts = ["code.example.test", "**.raw.example.test"]
paths = ["/Team/project/**"]
reason = 'upstream "fix" of this task'
[[allow]]
id = "model"
hosts = ["api.model.test"]
ports = [443, 8443]
methods = ["POST"]
paths = ["/v1/messages"]
query = { beta = ["true", "a b"], "odd key" = "*" }
websocket = true
max_request_bytes = 65536
max_response_bytes = 200_000_000
inject = "env:MODEL_KEY"
inject_header = "x-api-key"
phases = ["agent"]
[[allow]]
id = "lab"
addresses = ["192.0.2.1/32", "2001:db8::/64"]
ports = [5432]
inspect = false
[[allow]]
id = "forge"
hosts = ["forge.example.test"]
methods = "any"
ports = "any"
git = "fetch"
query = "none"
[dns]
answer = "all-synthetic"
max_qname_entropy_bits = 100
[addresses]
deny = []
"""


def test_every_key_of_the_schema_is_read() -> None:
    policy = parse(WHOLE.encode())
    assert policy.cutoff == datetime(2025, 2, 28, 22, tzinfo=UTC)
    assert (policy.deny_status, policy.undated, policy.deadline_s) == (404, "allow-recorded", 3600)
    assert (policy.dns_answer, policy.max_qname_entropy_bits, policy.deny_classes) == (
        "all-synthetic",
        100,
        frozenset(),
    )
    short, model, lab, forge = policy.allow
    assert short.id == "allowed_hosts"
    assert short.ports == {80, 443}
    assert short.methods == {b"GET", b"HEAD"}
    assert model.phases == ("agent",)
    assert short.phases == ("build", "agent")
    assert model.inject is not None
    assert (model.inject.env, model.inject.header, model.inject.prefix) == ("MODEL_KEY", "x-api-key", "")
    assert model.query == {b"beta": frozenset({b"true", b"a b"}), b"odd key": None}
    assert not lab.inspect
    assert forge.ports is forge.methods is None
    assert forge.query == {}
    assert policy.deny[0].paths[0].matches(b"/team/PROJECT/pull/1")


def test_a_policy_written_out_reads_back_to_the_same_digest() -> None:
    policy = parse(WHOLE.encode())
    again = parse(toml(policy, ("a comment",)).encode())
    assert again == policy
    assert again.sha256 == policy.sha256


def test_spelling_and_comments_do_not_change_the_digest_and_meaning_does() -> None:
    one = parse((HEAD + 'allowed_hosts = ["a.test"]').encode())
    two = parse(("# c\n" + HEAD + "allowed_hosts = [\n  'a.test',\n]\n[dns]\nanswer = 'allowed'").encode())
    three = parse((HEAD + 'allowed_hosts = ["b.test"]').encode())
    assert one.sha256 == two.sha256 != three.sha256


RULE = HEAD + '[[allow]]\nhosts = ["a.test"]\n'
TWICE = HEAD + '[[allow]]\nid="x"\nhosts=["a.test"]\n[[deny]]\nid="x"\nhosts=["b.test"]'
OPAQUE = '[[allow]]\nid="y"\nhosts=["**.b.test"]\ninspect=false'
BROKEN = {
    "empty": (b"", 0, "is empty"),
    "only blanks": (b" \n\t\n", 0, "is empty"),
    "not UTF-8": (b'schema = "caisson.gate/v1"\n# \xff', 2, "UTF-8"),
    "no TOML": (b"schema = ", 0, "no TOML"),
    "no schema": (b'network_mode = "record"', 0, "schema"),
    "other schema": (b'schema = "caisson.gate/v2"', 1, "schema"),
    "unknown key": ((HEAD + "allow_hosts = []").encode(), 3, "unknown key"),
    "unknown key of a rule": ((RULE + 'path = ["/"]').encode(), 5, "unknown key"),
    "unknown table": ((HEAD + "[adresses]\ndeny = []").encode(), 3, "unknown key"),
    "unknown mode": (b'schema = "caisson.gate/v1"\nnetwork_mode = "open"', 2, "one of"),
    "wrong type": ((HEAD + 'allowed_hosts = "a.test"').encode(), 3, "list of strings"),
    "number for text": ((HEAD + "action = 1").encode(), 3, "must be a string"),
    "flag for number": ((HEAD + "deny_status = true").encode(), 3, "integer"),
    "status": ((HEAD + "deny_status = 500").encode(), 3, "from 403 to 404"),
    "two same ids": (TWICE.encode(), 6, "two rules"),
    "reserved id": ((HEAD + '[[allow]]\nid = "default"\nhosts = ["a.test"]').encode(), 4, "another name"),
    "odd id": ((HEAD + '[[allow]]\nid = "a b"\nhosts = ["a.test"]').encode(), 4, "letters"),
    "no hosts": ((HEAD + '[[allow]]\nid = "x"').encode(), 3, "at least one"),
    "empty hosts": ((HEAD + '[[allow]]\nid = "x"\nhosts = []').encode(), 5, "at least one"),
    "empty methods": ((HEAD + '[[allow]]\nhosts = ["a.test"]\nmethods = []').encode(), 5, "never match"),
    "empty paths": ((HEAD + '[[allow]]\nhosts = ["a.test"]\npaths = []').encode(), 5, "never match"),
    "empty ports": ((HEAD + '[[allow]]\nhosts = ["a.test"]\nports = []').encode(), 5, "numbers"),
    "port 0": ((HEAD + '[[allow]]\nhosts = ["a.test"]\nports = [0]').encode(), 5, "numbers"),
    "lower method": ((HEAD + '[[allow]]\nhosts = ["a.test"]\nmethods = ["get"]').encode(), 5, "upper case"),
    "CONNECT": ((HEAD + '[[allow]]\nhosts = ["a.test"]\nmethods = ["CONNECT"]').encode(), 5, "tunnel"),
    "path": ((HEAD + '[[allow]]\nhosts = ["a.test"]\npaths = ["x"]').encode(), 5, "begins with no /"),
    "scheme in host": ((HEAD + 'allowed_hosts = ["https://a.test"]').encode(), 3, "scheme"),
    "path in host": ((HEAD + 'allowed_hosts = ["a.test/x"]').encode(), 3, "path"),
    "port in host": ((HEAD + 'allowed_hosts = ["a.test:443"]').encode(), 3, "port"),
    "upper host": ((HEAD + 'allowed_hosts = ["A.test"]').encode(), 3, "write a.test"),
    "trailing dot": ((HEAD + 'allowed_hosts = ["a.test."]').encode(), 3, "write a.test"),
    "unicode host": ((HEAD + 'allowed_hosts = ["b\u00fc.test"]').encode(), 3, "write xn--b-eha.test"),
    "star alone": ((HEAD + 'allowed_hosts = ["*"]').encode(), 3, "first label"),
    "star inside": ((HEAD + 'allowed_hosts = ["a.*.test"]').encode(), 3, "first label"),
    "star in label": ((HEAD + 'allowed_hosts = ["*a.test"]').encode(), 3, "first label"),
    "top level": ((HEAD + 'allowed_hosts = ["*.test"]').encode(), 3, "single label"),
    "public suffix": ((HEAD + 'allowed_hosts = ["*.co.uk"]').encode(), 3, "public suffix"),
    "platform": ((HEAD + 'allowed_hosts = ["**.github.io"]').encode(), 3, "public suffix"),
    "single label": ((HEAD + 'allowed_hosts = ["intranet"]').encode(), 3, "single label"),
    "address as host": ((HEAD + 'allowed_hosts = ["192.0.2.1"]').encode(), 3, "addresses"),
    "hex address as host": ((HEAD + 'allowed_hosts = ["0x7f.1"]').encode(), 3, "addresses"),
    "host bits": ((HEAD + '[[allow]]\naddresses = ["192.0.2.1/24"]').encode(), 4, "host bits"),
    "loopback": ((HEAD + '[[allow]]\nid = "x"\naddresses = ["127.0.0.1"]').encode(), 3, "loopback"),
    "holds loopback": ((HEAD + '[[allow]]\nid = "x"\naddresses = ["0.0.0.0/0"]').encode(), 3, "stay denied"),
    "metadata": ((HEAD + '[addresses]\ndeny=[]\n[[allow]]\naddresses = ["169.254.169.254"]').encode(), 5, "metadata"),
    "private": ((HEAD + '[[allow]]\naddresses = ["10.0.0.7"]').encode(), 3, "private"),
    "mapped": ((HEAD + '[[allow]]\naddresses = ["::ffff:127.0.0.1"]').encode(), 3, "loopback"),
    "class": ((HEAD + '[addresses]\ndeny = ["loopback"]').encode(), 4, "always denied"),
    "cutoff without offset": ((HEAD + "[time]\ncutoff = 2025-03-01T00:00:00").encode(), 4, "offset"),
    "cutoff a day": ((HEAD + "[time]\ncutoff = 2025-03-01").encode(), 4, "offset"),
    "deadline": ((HEAD + "[time]\ndeadline_s = 0").encode(), 4, "from 1"),
    "unenforceable": ((RULE + 'inspect=false\npaths=["/x"]').encode(), 6, "cannot be enforced"),
    "uninspected deny": (
        (HEAD + '[[deny]]\nid="d"\nhosts=["a.b.test"]\npaths=["/x"]\n' + OPAQUE).encode(), 3, "uninspected"),
    "half inspected": ((HEAD + '[[allow]]\nid="x"\nhosts=["a.b.test"]\n' + OPAQUE).encode(), 3, "uninspected"),
    "inject to a wildcard": ((HEAD + '[[allow]]\nhosts=["*.b.test"]\ninject="env:K"').encode(), 5, "written out"),
    "inject in plain": ((HEAD + '[[allow]]\nhosts=["a.test"]\nports=[80]\ninject="env:K"').encode(), 6, "TLS only"),
    "inject a value": ((HEAD + '[[allow]]\nhosts=["a.test"]\ninject="sk-123"').encode(), 5, "env:NAME"),
    "uninspected 80": ((RULE + "inspect = false\nports = [80]").encode(), 6, "drop it"),
    "repository": ((HEAD + '[[deny]]\nrepository="https://code.test/t/p"').encode(), 4, "without a scheme"),
    "repository's paths": ((HEAD + '[[deny]]\nrepository="code.test/t/p"\npaths=["/x"]').encode(), 5, "two rules"),
    "phase": ((HEAD + 'phases = ["night"]').encode(), 3, "no phase"),
    "phase not open": ((HEAD + '[[allow]]\nhosts=["a.test"]\nphases=["verify"]').encode(), 5, "no network"),
    "no phases": ((HEAD + '[[allow]]\nhosts=["a.test"]\nphases=[]').encode(), 5, "never count"),
    "rules without network": (b'schema = "caisson.gate/v1"\nallowed_hosts = ["a.test"]', 2, "allowlist"),
    "report without network": (b'schema = "caisson.gate/v1"\naction = "report"', 2, "report"),
    "no such bundle": ((HEAD + 'bundles = ["x"]').encode(), 3, "bundle"),
    "key twice": ((HEAD + 'network_mode = "record"').encode(), 0, "no TOML"),
    "control byte": ((HEAD + '[[allow]]\nhosts=["a.test"]\nreason="a\\u0007b"').encode(), 5, "printable"),
    "deep": (b"x = " + b"[" * 100_000, 0, "no TOML"),
    "oversize": (b"#" * (MAX_BYTES + 1), 0, "larger"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_names_file_line_and_cure(case: str) -> None:
    data, line, hint = BROKEN[case]
    with pytest.raises(PolicyError) as caught:
        parse(data, "my.toml")
    message = str(caught.value)
    assert message.startswith(f"my.toml:{line}: " if line else "my.toml: "), message
    assert hint in message
    assert message.endswith("; the box stays closed")
    assert "\n" not in message
    assert caught.value.exit_code == 2


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="does not exist"):
        load(tmp_path / "absent.toml")
    with pytest.raises(PolicyError, match="folder"):
        load(tmp_path)


def test_a_file_is_read_no_further_than_a_policy_can_be_long(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(PolicyError, match="larger"):
        load(path)


def test_a_closed_policy_allows_nothing_in_any_phase() -> None:
    for phase in ("build", "agent", "verify"):
        for kind in ("dns", "connect", "tls", "tcp", "udp"):
            request = Request(kind, 443, name_dns=b"docs.example.test", phase=phase)  # type: ignore[arg-type]
            assert not decide(closed(), request).allowed


def test_an_empty_allow_list_allows_nothing() -> None:
    policy = parse(HEAD.encode())
    assert not decide(policy, Request("connect", 443, name_dns=b"a.test")).allowed
    assert not decide(policy, Request("dns", 53, name_dns=b"a.test")).allowed


def test_public_is_record_with_a_warning() -> None:
    policy = parse(b'schema = "caisson.gate/v1"\nnetwork_mode = "public"')
    assert policy.network_mode == "record"
    assert "record" in policy.warnings[0]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_policy_or_a_policy_error(data: bytes) -> None:
    for text in (data, HEAD.encode() + data):
        try:
            parse(text)
        except PolicyError as error:
            assert "\n" not in str(error)


WORDS = """
schema network_mode action deny_status bundles allowed_hosts time deny allow dns addresses phases id hosts ports methods
paths query websocket inspect inject index git cutoff undated deadline_s answer reason
"""
keys = st.sampled_from(WORDS.split())
values = st.recursive(
    st.sampled_from(["allowlist", "a.test", "*.b.test", "/**", "/x", "GET", "any", "agent", "env:K", "", "pypi"])
    | st.booleans()
    | st.integers(-5, 70_000)
    | st.floats()
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(inner) for inner in value) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str | int | float) else str(value)


@given(st.dictionaries(keys, values, max_size=6))
def test_any_table_with_the_schemas_own_keys_is_a_policy_that_reads_back_or_an_error(table: dict[str, object]) -> None:
    table = {"schema": "caisson.gate/v1", "network_mode": "allowlist", **table}
    text = "\n".join(f"{key} = {_written(value)}" for key, value in table.items())
    try:
        policy = parse(text.encode())
    except PolicyError as error:
        assert "\n" not in str(error)
        return
    assert parse(toml(policy).encode()).sha256 == policy.sha256
