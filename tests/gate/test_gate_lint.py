"""Lint, explain and convert: what a policy lets through is told before any box has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from caisson_gate.decide import Reason
from caisson_gate.explain import NotAUrl, explain
from caisson_gate.lint import WARNING, lint
from caisson_gate.load import bundle, bundle_names, load, policies
from caisson_gate.mirrors import mirrors
from caisson_gate.policy import parse
from hypothesis import given
from hypothesis import strategies as st

HEAD = 'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n'


def remarks(text: str) -> str:
    return "\n".join(f"{one.level} {one.rule}: {one.text}" for one in lint(parse((HEAD + text).encode()), {}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('allowed_hosts = ["r.jina.ai"]', "warning allowed_hosts: r.jina.ai reaches r.jina.ai (reader)"),
        ('allowed_hosts = ["web.archive.org"]', "(archive)"),
        ('allowed_hosts = ["raw.githubusercontent.com"]', "(raw)"),
        ('allowed_hosts = ["translate.google.com"]', "(translator)"),
        ('allowed_hosts = ["github.com"]', "(forge)"),
        ('[[allow]]\nid = "x"\nhosts = ["a.test"]\ninspect = false', "warning x: inspect = false"),
        ('[[allow]]\nid = "x"\nhosts = ["a.test"]\nmethods = ["PUT"]', "data can leave"),
        ('[[allow]]\nid = "x"\nhosts = ["a.test"]\ninject = "env:KEY"', "env:KEY, which is not set"),
        ('[[allow]]\nid = "x"\nhosts = ["a.test"]\ngit = "push"', "into a repository"),
        ("[addresses]\ndeny = []", "private addresses"),
        ('[dns]\nanswer = "all-synthetic"', "every name is answered"),
        ("", "nothing is reached"),
        (
            '[[allow]]\nid = "wide"\nhosts = ["**.b.test"]\n'
            '[[allow]]\nid = "narrow"\nhosts = ["a.b.test"]\npaths = ["/x"]',
            "warning narrow: is no limit for a.b.test: rule wide",
        ),
        (
            '[[deny]]\nid = "d"\nhosts = ["**.b.test"]\n[[allow]]\nid = "a"\nhosts = ["x.b.test"]',
            "warning a: never allows anything: rule d",
        ),
        (
            '[time]\ncutoff = 2025-01-01T00:00:00Z\n[[allow]]\nid = "x"\nhosts = ["a.test"]\nindex = "apt"',
            "warning x: an apt archive has no dates",
        ),
        ('[time]\ncutoff = 2025-01-01T00:00:00Z\n[[allow]]\nid = "x"\nhosts = ["a.test"]', "not the answers of x"),
    ],
)
def test_lint_tells_what_may_not_be_meant(text: str, said: str) -> None:
    assert said in remarks(text)


def test_a_plain_narrow_policy_draws_no_remark() -> None:
    text = '[[allow]]\nid = "x"\nhosts = ["docs.example.test"]\npaths = ["/guide/**"]'
    assert remarks(text) == ""


def test_a_forge_whose_repository_is_denied_draws_no_warning() -> None:
    text = 'allowed_hosts = ["github.com"]\n[[deny]]\nid = "fix"\nrepository = "github.com/team/project"'
    assert "warning" not in remarks(text)


def test_a_mode_that_lets_through_by_default_is_a_warning() -> None:
    for mode in ("record", "denylist", "public"):
        policy = parse(f'schema = "caisson.gate/v1"\nnetwork_mode = "{mode}"'.encode())
        assert any(one.level == WARNING and "mirrors" in one.text for one in lint(policy))


def test_the_bundles_that_come_with_the_gate_load_and_reach_no_mirror() -> None:
    assert bundle_names()
    for name in bundle_names():
        rules = bundle(name)
        assert rules
        assert all(rule.id.startswith(name) for rule in rules)
        policy = parse((HEAD + f'bundles = ["{name}"]').encode(), bundles=bundle)
        assert not any(one.level == WARNING for one in lint(policy)), name


@pytest.mark.parametrize("name", ["../x", "mirrors", "docs-basic@999", "docs-basic@", "none-such", "pip@1", ""])
def test_a_bundle_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is "):
        bundle(name)


def test_bundles_count_in_the_policys_phases_and_into_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(HEAD + 'phases = ["build"]\nbundles = ["docs-basic@1"]')
    policy = load(path)
    assert policy.bundles == ("docs-basic@1",)
    assert {rule.phases for rule in policy.allow} == {("build",)}
    path.write_text(HEAD + 'phases = ["build"]')
    assert load(path).sha256 != policy.sha256


def test_no_index_stands_in_the_tree() -> None:
    for path in policies().iterdir():
        text = path.read_text()
        assert "index =" not in text
        assert "registry" not in text
    assert len({mirror.kind for mirror in mirrors()}) == len(mirrors())


def test_the_example_of_the_documentation_is_a_policy_and_tells_every_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gate-policy.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0].replace('"docs-basic", "pip"', '"docs-basic"')
    assert parse(example.encode(), bundles=bundle).allow
    for reason in Reason:
        assert f"`{reason}`" in text


# explain

POLICY = parse(
    (
        HEAD + 'allowed_hosts = ["docs.example.test"]\n[[allow]]\nid = "pinned"\nhosts = ["p.test"]\ninspect = false\n'
        '[[allow]]\nid = "lab"\naddresses = ["192.0.2.7"]\n[[allow]]\nid = "ws"\nhosts = ["w.test"]\nwebsocket = true'
    ).encode()
)


def steps(url: str, **known: object) -> list[tuple[str, str | None]]:
    found = explain(POLICY, url.encode(), **known)  # type: ignore[arg-type]
    return [(step.kind, None if step.decision.allowed else str(step.decision.reason)) for step in found]


def test_explain_goes_through_the_steps_and_ends_at_the_first_refusal() -> None:
    whole = [("dns", None), ("connect", None), ("tls", None), ("http", None)]
    assert steps("https://docs.example.test/x?y#z") == whole
    assert steps("http://docs.example.test/") == [whole[0], whole[1], whole[3]]
    assert steps("HTTPS://DOCS.EXAMPLE.TEST.:443/") == whole
    assert steps("https://docs.example.test/", method=b"POST")[-1] == ("http", "method_not_allowed")
    assert steps("https://docs.example.test/", sni=b"x.test") == [*whole[:2], ("tls", "sni_mismatch")]
    assert steps("https://docs.example.test/", host=b"x.test") == [*whole[:3], ("http", "host_mismatch")]
    assert steps("https://docs.example.test/", address="10.0.0.1") == [whole[0], ("connect", "address_denied")]
    assert steps("https://other.test/") == [("dns", "dns_not_allowed")]
    assert steps("https://docs.example.test:8443/") == [whole[0], ("connect", "port_not_allowed")]
    assert steps("https://192.0.2.7/") == whole[1:]
    assert steps("https://[2001:db8::1]/") == [("connect", "ip_literal")]
    assert steps("http://127.1/") == [("connect", "address_denied")]
    assert steps("https://p.test/any") == whole[:3]
    assert steps("wss://w.test/s") == [*whole[:3], ("ws", None)]
    assert steps("https://u@docs.example.test/") == [("dns", "dns_malformed")]


@pytest.mark.parametrize("url", ["", "x", "ftp://a.test/", "//a.test", "https:/a.test"])
def test_explain_takes_urls_only(url: str) -> None:
    with pytest.raises(NotAUrl):
        steps(url)


@given(st.binary(max_size=60))
def test_any_url_is_explained_or_is_none(rest: bytes) -> None:
    for url in (rest, b"https://" + rest, b"http://docs.example.test" + rest):
        try:
            assert explain(POLICY, url)
        except NotAUrl:
            pass


# the commands


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "caisson_runner", "gate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_commands_say_it_in_words_in_json_and_by_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(HEAD + 'allowed_hosts = ["docs.example.test", "web.archive.org"]')
    linted = run("lint", str(path))
    assert linted.returncode == 0
    assert "web.archive.org" in linted.stdout
    assert run("lint", str(path), "--strict").returncode == 1
    allowed = run("explain", str(path), "https://docs.example.test/x", "--json")
    assert allowed.returncode == 0
    assert [step["kind"] for step in json.loads(allowed.stdout)["steps"]] == ["dns", "connect", "tls", "http"]
    refused = run("explain", str(path), "https://other.test/")
    assert refused.returncode == 1
    assert "dns_not_allowed" in refused.stdout


def test_a_broken_policy_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(HEAD + "allow_hosts = []")
    broken = run("lint", str(path))
    assert broken.returncode == 2
    assert broken.stdout == ""
    assert broken.stderr.startswith(f"caisson-run: {path}:3: allow_hosts: unknown key")
    assert broken.stderr.count("\n") == 1


def test_what_is_converted_and_what_is_expanded_reads_back(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"network": {"allowedDomains": ["docs.example.test", "localhost"]}}')
    converted = run("convert", str(settings))
    assert converted.returncode == 0
    assert "localhost" in converted.stderr
    policy = tmp_path / "policy.toml"
    policy.write_text(converted.stdout)
    expanded = run("lint", str(policy), "--expand")
    assert parse(expanded.stdout.encode()).sha256 == load(policy).sha256


def test_a_task_is_linted_by_what_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["docs.example.test"]'
    )
    linted = run("lint", str(tmp_path), "--json")
    assert linted.returncode == 0
    assert json.loads(linted.stdout)["policy_sha256"]


def test_policies_are_tried_without_anything_that_the_base_install_lacks() -> None:
    code = (
        "import sys\n"
        "from caisson_gate import answers, convert, explain, hosted, lint\n"
        "print(sorted({'mitmproxy', 'dnslib', 'pyroute2', 'cryptography'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n"
