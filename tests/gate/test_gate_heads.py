"""The strict reader of heads: whatever it takes has one meaning, whatever it is given it answers."""

from __future__ import annotations

import pytest
from caisson_gate.heads import MalformedHead, UnwantedProtocol, end_of_head, read_head
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.net.http import http1

WORDS = b"GET / HTTP/1.1 Host a.test Content-Length 5 Transfer-Encoding chunked http:// Upgrade websocket , :".split()
PIECES = [*WORDS, b" ", b"\r\n", b"\n", b"\r", b"\0", b"\t", b"\xff", b"\r\n\r\n"]


@given(st.binary(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join))
def test_any_bytes_are_a_head_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        size = end_of_head(data)
        if not size:
            return
        head = read_head(data[:size])
    except (MalformedHead, UnwantedProtocol):
        return
    assert data.startswith(head.method + b" " + head.target + b" HTTP/1.")
    lines = data[: size - 4].split(b"\r\n")
    assert not any(line[:1] in b" \t" or b"\n" in line or b"\r" in line or b"\0" in line for line in lines if line)


@given(st.lists(st.tuples(st.sampled_from([b"X-A", b"Accept", b"Cookie"]), st.binary(max_size=20)), max_size=6))
def test_what_is_taken_the_parser_behind_reads_the_same_way(fields: list[tuple[bytes, bytes]]) -> None:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    raw = b"GET /x HTTP/1.1\r\nHost: a.test\r\n" + lines + b"\r\n"
    try:
        if end_of_head(raw) != len(raw):
            return
        head = read_head(raw)
    except (MalformedHead, UnwantedProtocol):
        return
    parsed = http1.read_request_head(raw[:-4].split(b"\r\n"))
    assert (parsed.data.method, parsed.data.path) == (head.method, head.target)
    assert len(parsed.headers.fields) == len(fields) + 1


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"http://a.test/x?y", (b"http", b"a.test", b"/x?y")),
        (b"http://a.test", (b"http", b"a.test", b"/")),
        (b"http://a.test?y", (b"http", b"a.test", b"/?y")),
        (b"HTTPS://a.test:8443/", (b"https", b"a.test:8443", b"/")),
        (b"/http://a.test/", None),
        (b"/x", None),
    ],
)
def test_absolute_targets_are_taken_apart(target: bytes, parts: tuple[bytes, bytes, bytes] | None) -> None:
    assert read_head(b"GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n" % target).absolute == parts
