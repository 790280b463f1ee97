"""Names, addresses and authorities: one canonical form each, and everything ambiguous refused before any rule."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest
from caisson_gate.names import (
    MAX_NAME,
    MalformedName,
    address_classes,
    canonical_authority,
    canonical_host,
    embedded,
    from_wire,
    parse_authority,
    parse_host,
)
from hypothesis import example, given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"..",
        b"a..b.test",
        b".a.test",
        b"a.test..",
        b"a b.test",
        b"a.test\x00.b.test",
        b"a.test\n",
        b"\ta.test",
        b"user@a.test",
        b"a.test/x",
        b"a.test?x",
        b"a.test#x",
        b"a.test\\b.test",
        b"a%2etest",
        b"%61.test",
        b"a.test%00",
        b"[a.test]",
        b"[1.2.3.4]",
        b"a.test:80",
        b"[::1",
        b"::1]",
        b"\xff\xfe.test",
        b"a" * 64 + b".test",
        b".".join([b"a" * 60] * 5),
        b"a*.test",
        b"a,b.test",
        b"x" * 5000,
    ],
)
def test_a_host_that_is_no_host_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedName):
        parse_host(raw)
    assert canonical_host(raw) is None


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"Docs.Example.TEST", "docs.example.test"),
        (b"docs.example.test.", "docs.example.test"),
        ("B\u00fccher.test".encode(), "xn--bcher-kva.test"),
        ("b\u00fccher\u3002test".encode(), "xn--bcher-kva.test"),
        ("docs\uff0eexample\uff61test".encode(), "docs.example.test"),
        ("\uff44\uff4f\uff43\uff53.example.test".encode(), "docs.example.test"),
        ("\u24d3\u24de\u24d2\u24e2.example.test".encode(), "docs.example.test"),
        (b"xn--BCHER-kva.test", "xn--bcher-kva.test"),
        (b"_dmarc.a-b.test", "_dmarc.a-b.test"),
    ],
)
def test_every_spelling_of_a_name_is_the_same_name(raw: bytes, text: str) -> None:
    host = parse_host(raw)
    assert host.text == text
    assert host.labels == tuple(text.split("."))
    assert host.address is None


@pytest.mark.parametrize(
    "name", ["stra\u00dfe.test", "\u03b1\u03c2.test", "a\u200db.test", "a\u200c.test", "\U0001f130llowed.test"]
)
def test_characters_that_two_readers_take_for_different_names_are_malformed(name: str) -> None:
    with pytest.raises(MalformedName):
        parse_host(name.encode())


@pytest.mark.parametrize("name", ["\u2026test", "a\u2024test", "\u2488test.test", "a\uff0fb.test", "a\uff05b.test"])
def test_a_character_that_hides_a_dot_a_slash_or_a_percent_sign_is_malformed(name: str) -> None:
    with pytest.raises(MalformedName):
        parse_host(name.encode())


@pytest.mark.parametrize("label", ["xn--", "xn--example-", "xn--allowed-", "xn--99999999", "xn--a-"])
def test_a_label_marked_as_encoded_that_is_not_is_malformed(label: str) -> None:
    with pytest.raises(MalformedName):
        parse_host(f"{label}.test".encode())


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        (b"127.0.0.1", "127.0.0.1"),
        (b"2130706433", "127.0.0.1"),
        (b"0x7f000001", "127.0.0.1"),
        (b"0X7F000001", "127.0.0.1"),
        (b"017700000001", "127.0.0.1"),
        (b"0x7f.1", "127.0.0.1"),
        (b"127.1", "127.0.0.1"),
        (b"127.0.1", "127.0.0.1"),
        (b"0177.0.0.01", "127.0.0.1"),
        (b"127.0.0.1.", "127.0.0.1"),
        (b"0", "0.0.0.0"),
        (b"169.254.43518", "169.254.169.254"),
        (b"0xA9FEA9FE", "169.254.169.254"),
        ("\uff11\uff12\uff17.0.0.1".encode(), "127.0.0.1"),
        (b"[::1]", "::1"),
        (b"::1", "::1"),
        (b"[0:0:0:0:0:0:0:1]", "::1"),
        (b"[::ffff:127.0.0.1]", "127.0.0.1"),
        (b"[::ffff:7f00:1]", "127.0.0.1"),
        (b"[2001:DB8::7]", "2001:db8::7"),
    ],
)
def test_every_spelling_of_an_address_is_that_address(raw: bytes, address: str) -> None:
    assert parse_host(raw).address == ip_address(address)
    assert parse_host(raw).labels == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"256.1.1.1",
        b"1.2.3.4.5",
        b"1.2.3",
        b"09.1.1.1",
        b"0x.1.1.1",
        b"foo.7",
        b"a.0x1f",
        b"4294967296",
        b"1.16777216",
        b"1..2",
        b"0xfffffffffffffffffffff",
        b"9" * 60,
    ],
)
def test_what_ends_like_an_address_is_one_or_malformed(raw: bytes) -> None:
    if raw == b"1.2.3":  # the C library's: 1.2.0.3
        assert str(parse_host(raw).address) == "1.2.0.3"
        return
    with pytest.raises(MalformedName):
        parse_host(raw)


@pytest.mark.parametrize("raw", [b"[fe80::1%eth0]", b"[::1%25docs.example.test]", b"fe80::1%lo", b"[::1%]"])
def test_a_zone_is_always_refused(raw: bytes) -> None:
    with pytest.raises(MalformedName):
        parse_host(raw)


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from("dox"), min_size=4, max_size=4), st.integers(1, 4))
def test_loose_addresses_are_read_as_the_c_library_reads_them(value: int, bases: list[str], count: int) -> None:
    octets = value.to_bytes(4, "big")
    numbers = [*octets[: count - 1], int.from_bytes(octets[count - 1 :], "big")]
    spelled = ".".join(
        {"d": str(number), "o": f"0{number:o}" if number else "0", "x": f"0x{number:x}"}[base]
        for number, base in zip(numbers, bases, strict=False)
    )
    found = parse_host(spelled.encode()).address
    assert found is not None
    assert found.packed == socket.inet_aton(spelled) == octets


@given(st.from_regex(r"\A[0-9a-fxX.]{1,20}\Z"))
@example("0x7f.0.0.1")
def test_nothing_the_c_library_takes_for_an_address_passes_for_a_name(text: str) -> None:
    try:
        octets = socket.inet_aton(text)
    except OSError:
        return
    try:
        host = parse_host(text.encode())
    except MalformedName:
        return
    assert host.address is not None
    assert host.address.packed == octets


@given(st.binary(max_size=80))
def test_any_bytes_are_a_canonical_host_or_malformed(raw: bytes) -> None:
    try:
        host = parse_host(raw)
    except MalformedName:
        return
    assert parse_host(host.text.encode()) == host
    assert len(host.text) <= MAX_NAME
    assert host.text == host.text.lower()
    assert host.text.isascii()


@given(st.text(max_size=30))
def test_any_text_is_a_canonical_host_or_malformed(text: str) -> None:
    try:
        raw = text.encode()
        host = parse_host(raw)
    except (MalformedName, UnicodeEncodeError):
        return
    assert parse_host(host.text.encode()) == host


@given(st.binary(max_size=60), st.none() | st.integers(1, 65535))
def test_any_bytes_are_a_canonical_authority_or_malformed(raw: bytes, default: int | None) -> None:
    try:
        host, port = parse_authority(raw, default)
    except MalformedName:
        assert canonical_authority(raw, default) is None
        return
    assert 1 <= port <= 65535
    assert parse_authority(f"{host.authority}:{port}".encode()) == (host, port)


@pytest.mark.parametrize(
    "raw",
    [
        b"a.test:",
        b"a.test:0",
        b"a.test:65536",
        b"a.test:+80",
        b"a.test: 80",
        b"a.test:80:80",
        b"a.test:8_0",
        b"a.test:\xd9\xa1",
        b"[::1]80",
        b"[::1]:",
        b"::1:443",
        b"a.test",
        b":443",
        b"u@a.test:443",
    ],
)
def test_an_authority_that_can_be_split_in_two_ways_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedName):
        parse_authority(raw)


def test_a_label_that_holds_a_dot_is_no_name() -> None:
    with pytest.raises(MalformedName):
        from_wire((b"evil.docs", b"example", b"test"))
    with pytest.raises(MalformedName):
        from_wire((b"a\x00b", b"test"))
    with pytest.raises(MalformedName):
        from_wire(("\u00e4".encode(), b"test"))
    assert from_wire((b"DoCs", b"test")).text == "docs.test"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "this-host"),
        ("::", "this-host"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("10.1.2.3", "private"),
        ("172.31.255.255", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::127.0.0.1", "loopback"),
        ("::ffff:0:127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("64:ff9b::a9fe:a9fe", "metadata"),
        ("64:ff9b:1::127.0.0.1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("2002:a9fe:a9fe::1", "metadata"),
        ("2001:0:7f00:1::", "loopback"),
        ("2001::80ff:fffe", "loopback"),
        ("2001:db8::200:5efe:7f00:1", "loopback"),
    ],
)
def test_an_address_is_judged_by_class_and_by_the_address_inside_it(address: str, found: str) -> None:
    assert found in address_classes(ip_address(address))


@pytest.mark.parametrize("address", ["192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1", "2a00::1", "8.8.4.4"])
def test_an_ordinary_address_is_in_no_class(address: str) -> None:
    assert address_classes(ip_address(address)) == frozenset()


@pytest.mark.parametrize(
    ("prefix", "written"),
    [
        (48, "64:ff9b:1:7f00:0:100::"),
        (56, "64:ff9b:1:7f:0:1::"),
        (64, "64:ff9b:1:0:7f:0:100:0"),
        (96, "64:ff9b:1::7f00:1"),
    ],
)
def test_an_address_inside_a_local_translation_prefix_is_found_at_every_length(prefix: int, written: str) -> None:
    address = ip_address(written)
    assert address.version == 6
    assert "127.0.0.1" in [str(inner) for inner in embedded(address)], prefix
