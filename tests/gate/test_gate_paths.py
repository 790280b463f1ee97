"""Paths: what is matched is what is sent, and what servers read in two ways is refused."""

from __future__ import annotations

import re

import pytest
from caisson_gate.paths import Glob, MalformedPath, canonical_path, check_query, query_pairs
from hypothesis import example, given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "raw",
    [
        b"//a",
        b"/a//b",
        b"/a/%2e%2e/b",
        b"/a/%2E./b",
        b"/a%2fb",
        b"/a%2Fb",
        b"/a%5cb",
        b"/a\\b",
        b"/a;x=1/b",
        b"/a/..;/b",
        b"/a%252e%252e/b",
        b"/a%252fb",
        b"/a%00",
        b"/a%c0%afb",
        b"/a%c0%ae",
        b"/a%c1%9cb",
        b"/a%",
        b"/a%2",
        b"/a%zz",
        b"/a b",
        b"/a\tb",
        b"/a\x00",
        b"/a\xff",
        b"/a?b",
        b"/a#b",
        b"a/b",
        b"*",
        b"http://a.test/",
        b"/" + b"a" * 20_000,
    ],
)
def test_an_ambiguous_path_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedPath):
        canonical_path(raw)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        (b"", b"/"),
        (b"/", b"/"),
        (b"/a/./b", b"/a/b"),
        (b"/a/../b", b"/b"),
        (b"/a/b/..", b"/a/"),
        (b"/../../x", b"/x"),
        (b"/a/.", b"/a/"),
        (b"/%61%7Eb", b"/a~b"),
        (b"/a%20b", b"/a%20b"),
        (b"/%c3%a4", b"/%C3%A4"),
        (b"/A/b", b"/A/b"),
        (b"/.well-known/x", b"/.well-known/x"),
        (b"/a/...", b"/a/..."),
        (b"/@scope%2fname", b"/@scope/name"),
        (b"/a/[id]/{x}|y", b"/a/%5Bid%5D/%7Bx%7D%7Cy"),
        (b"/npm/@s-c.o_pe%2Fname.js", b"/npm/@s-c.o_pe/name.js"),
    ],
)
def test_a_path_has_one_form(raw: bytes, canonical: bytes) -> None:
    assert canonical_path(raw) == canonical


@pytest.mark.parametrize("raw", [b"/@a%2f..", b"/@a%2f.hidden", b"/@..%2fa", b"/@a%2fb%2fc", b"/x@a%2fb", b"/@%2fb"])
def test_only_the_shape_of_a_scoped_package_may_hold_an_encoded_slash(raw: bytes) -> None:
    with pytest.raises(MalformedPath):
        canonical_path(raw)


@given(st.binary(max_size=60) | st.from_regex(rb"\A(/(\.|\.\.|[a-c]|%2[0-9eEfF]|%25|%6[0-9]|@a%2fb|;|\\)*){1,6}\Z"))
@example(b"/a/%2561")
def test_any_bytes_are_a_canonical_path_or_malformed(raw: bytes) -> None:
    try:
        path = canonical_path(raw)
    except MalformedPath:
        return
    assert canonical_path(path) == path
    assert path.startswith(b"/")
    assert b"//" not in path
    assert not {b".", b".."} & set(path.split(b"/"))
    assert all(0x21 <= byte < 0x7F for byte in path)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/**", "/", True),
        ("/**", "/a/b", True),
        ("/a/**", "/a", True),
        ("/a/**", "/a/", True),
        ("/a/**", "/a/b/c", True),
        ("/a/**", "/ab", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", False),
        ("/a/*", "/a", False),
        ("/a/*.json", "/a/x.json", True),
        ("/a/*.json", "/a/.jsonx", False),
        ("/a/b*c*d", "/a/bxcyd", True),
        ("/a/b*c*d", "/a/bd", False),
        ("/**/x", "/x", True),
        ("/**/x", "/a/b/x", True),
        ("/**/x", "/a/xy", False),
        ("/**/x/**/y", "/a/x/b/x/y", True),
        ("/v1/messages", "/v1/messages", True),
        ("/v1/messages", "/v1/messages/", False),
        ("/v1/messages", "/V1/messages", False),
        ("/", "/", True),
        ("/", "/a", False),
    ],
)
def test_a_glob_matches_by_segments(pattern: str, path: str, matches: bool) -> None:
    assert Glob.parse(pattern).matches(path.encode()) is matches


def test_a_folded_glob_has_no_case() -> None:
    assert Glob.parse("/Team/Project/**", folded=True).matches(b"/tEAM/pROJECT/pull/1")
    assert not Glob.parse("/Team/Project/**").matches(b"/team/project/pull/1")


@pytest.mark.parametrize(
    "text", ["a", "", "*", "/a**", "/**b/c", "/a/**/**", "//", "/a//b", "/../a", "/a/%2e", "/\u00e4"]
)
def test_a_glob_that_could_never_match_is_refused(text: str) -> None:
    with pytest.raises(MalformedPath):
        Glob.parse(text)


segments = st.text("ab*", min_size=1, max_size=4).filter(lambda text: "**" not in text)


@given(st.lists(segments | st.just("**"), min_size=1, max_size=6), st.lists(st.text("ab", max_size=4), max_size=6))
def test_globs_agree_with_a_plain_regular_expression(pattern: list[str], path: list[str]) -> None:
    kept = [part for at, part in enumerate(pattern) if part != "**" or at == 0 or pattern[at - 1] != "**"]
    glob = Glob.parse("/" + "/".join(kept))
    expression = "".join(
        "(?:/[^/]*)*" if part == "**" else "/" + re.escape(part).replace(r"\*", "[^/]*") for part in kept
    )
    text = "/" + "/".join(path)
    assert glob.matches(text.encode()) is (re.fullmatch(expression, text) is not None)


def test_a_long_glob_over_a_long_path_takes_steps_in_the_product_of_their_lengths() -> None:
    glob = Glob.parse("/" + "/".join(["**", "a"] * 50))
    assert not glob.matches(b"/a" * 1000 + b"/b")


@pytest.mark.parametrize("raw", [b"a=b\x00", b"a b", b"a#b", b"\xff", b"a" * 20_000])
def test_a_query_that_no_url_can_hold_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedPath):
        check_query(raw)


def test_a_query_is_read_in_one_way_or_not_at_all() -> None:
    assert query_pairs(b"a=1&b=%41+c") == [(b"a", b"1"), (b"b", b"A c")]
    assert query_pairs(b"a=1;b=2") is None
    assert query_pairs(b"a=%4") is None
