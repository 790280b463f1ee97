"""Real policies, names, paths and pages with parts of them replaced, repeated or cut out: a policy that means the same
when it is written out, or an error of ours; never a crash, and never wider than what was written.

Short in the default run; ``CAISSON_FUZZ_SECONDS=60`` goes on for as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caisson_gate.convert import FORMATS, convert
from caisson_gate.decide import Request, decide
from caisson_gate.document import toml
from caisson_gate.errors import PolicyError
from caisson_gate.lint import lint
from caisson_gate.load import policies
from caisson_gate.names import MalformedName, parse_authority, parse_host
from caisson_gate.paths import MalformedPath, canonical_path
from caisson_gate.policy import parse, parse_bundle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.fuzz]
SECONDS = float(os.environ.get("CAISSON_FUZZ_SECONDS", "0"))
PARTS = 4
EXAMPLE = (
    (Path(__file__).parents[2] / "docs" / "gate-policy.md").read_text().partition("```toml\n")[2].partition("```")[0]
)
SEEDS = [
    EXAMPLE.replace('bundles       = ["docs-basic", "pip"]\n', ""),
    (policies() / "docs-basic.toml").read_text(),
    '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.test", "*.b.test", "192.0.2.1"]\n',
    '{"network": {"allowedDomains": ["a.test", "*.b.test:8443", "[2001:db8::1]:443"], "deniedDomains": ["c.b.test"]}}',
    "---\non: push\nnetwork:\n  allowed:\n    - python\n    - \"a.test\"\n  blocked: [b.test, 'c.test']\n---\n# Text\n",
]
TOKENS = [
    "*", "**", ".", "..", "/", "\\", "%2e", "%", ":", "[", "]", "[[", "{", "}", '"', "'", "#", "=", "\n", "\t", "\0",
    "0", "00", "0x7f", "127.1", "::1", "443", "-1", "1e9", "nan", "true", '"any"', '"none"', "any", "allow", "deny",
    "[[allow]]", "[[deny]]", "hosts", "inspect = false", "ports = [80]", "a.test", "*.b.test", "localhost", "\u00df",
    "\ud7ff", "xn--", "xn--bcher-kva", "\u3002", "\U0001f600", "2025-03-01", "schema", "network_mode", "record", "---",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, seeds: list[str]) -> str:
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 2, 5, 20, 80])))
        piece = draw(st.sampled_from(["", text[start:end] * 2, *TOKENS]))
        text = text[:start] + piece + text[end:]
    return text


def for_a_while(check: Callable[[], None]) -> None:
    end = time.monotonic() + SECONDS / PARTS
    check()
    while time.monotonic() < end:
        check()


def fuzzing(examples: int) -> Any:
    calm = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
    phases = (Phase.generate, Phase.shrink)
    return settings(max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=calm)


def test_a_damaged_policy_is_a_policy_that_reads_back_or_one_line() -> None:
    @fuzzing(200)
    @given(damaged(SEEDS))
    def check(text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        for read in (parse, parse_bundle):
            try:
                found = read(data, "x.toml")
            except PolicyError as error:
                assert "\n" not in str(error)
                continue
            if read is parse:
                policy: Any = found
                assert parse(toml(policy).encode()).sha256 == policy.sha256
                lint(policy, {})
                for kind in ("dns", "connect", "http"):
                    decide(policy, Request(kind, 443, "https", name_dns=b"a.test", method=b"GET", path=b"/"))  # type: ignore[arg-type]

    for_a_while(check)


def test_a_damaged_file_of_another_tool_converts_or_is_one_line() -> None:
    @fuzzing(150)
    @given(damaged(SEEDS))
    def check(text: str) -> None:
        for kind in FORMATS:
            try:
                found = convert(text.encode("utf-8", "surrogatepass"), kind, "x")
            except PolicyError as error:
                assert "\n" not in str(error)
                continue
            assert parse(toml(found.policy, found.warnings).encode()).sha256 == found.policy.sha256

    for_a_while(check)


HOSTS = ["docs.example.test", "127.0.0.1", "[2001:db8::1]:443", "xn--bcher-kva.test:80", "b\u00fccher.test", "a.test."]


def test_a_damaged_host_has_one_form_or_none() -> None:
    @fuzzing(300)
    @given(damaged(HOSTS))
    def check(text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        try:
            host = parse_host(raw)
        except MalformedName:
            pass
        else:
            assert parse_host(host.text.encode()) == host
            assert parse_host(host.text.upper().encode()) == host
            if host.address is None:
                assert parse_host(host.text.encode() + b".") == host
        try:
            host, port = parse_authority(raw, 443)
        except MalformedName:
            return
        assert parse_authority(f"{host.authority}:{port}".encode()) == (host, port)

    for_a_while(check)


PATHS = ["/team/project/pull/7", "/@scope%2fname", "/a/./b/../c", "/%61/%c3%a4", "/simple/pkg/", "/a%20b"]


def test_a_damaged_path_has_one_form_or_none_and_a_denied_folder_stays_denied() -> None:
    policy = parse(
        b'schema = "caisson.gate/v1"\nnetwork_mode = "record"\n'
        b'[[deny]]\nid = "x"\nhosts = ["a.test"]\npaths = ["/team/project/**"]'
    )

    @fuzzing(300)
    @given(damaged(PATHS))
    def check(text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        request = Request("http", 443, "https", name_dns=b"a.test", name_host=b"a.test", method=b"GET", path=raw)
        found = decide(policy, request)
        try:
            path = canonical_path(raw)
        except MalformedPath:
            assert found.status == 400
            return
        assert canonical_path(path) == path
        below = path.lower().split(b"/")[1:3] == [b"team", b"project"]
        assert found.allowed is not below
        assert found.path == path

    for_a_while(check)
