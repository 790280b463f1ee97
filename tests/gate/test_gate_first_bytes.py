"""The first bytes of a connection and of a packet, against what real clients and kernels make."""

from __future__ import annotations

import os
import socket
import ssl
import struct

import pytest
from caisson_gate.hello import H2_PREFACE, MalformedHello, looks_like, read_hello
from caisson_gate.packets import read
from hypothesis import given, settings
from hypothesis import strategies as st


def client_hello(name: str | None, *protocols: str) -> bytes:
    """What OpenSSL sends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        made.do_handshake()
    return outgoing.read()


def test_the_server_name_of_a_real_client_is_read():
    hello = read_hello(client_hello("Docs.Example.test", "h2", "http/1.1"))
    assert hello is not None
    assert (hello.sni, hello.ech) == (b"Docs.Example.test", False)
    without = read_hello(client_hello(None))
    assert without is not None
    assert without.sni is None


def test_a_hello_in_many_records_and_many_pieces_is_the_same_hello():
    whole = client_hello("docs.test")
    body = whole[5:]
    pieces = [body[at : at + 37] for at in range(0, len(body), 37)]
    spread = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    for size in range(1, len(spread)):
        assert read_hello(spread[:size]) is None
    assert read_hello(spread) == read_hello(whole)


def with_extension(kind: int, value: bytes) -> bytes:
    """A minimal hello with one more extension."""
    extensions = struct.pack("!HH", 0, 13) + b"\0\x0b\0\0\x08web.test" + struct.pack("!HH", kind, len(value)) + value
    body = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extensions).to_bytes(2, "big") + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def test_an_encrypted_inner_hello_is_noticed_and_the_outer_name_counts():
    hello = read_hello(with_extension(0xFE0D, b"x" * 40))
    assert hello is not None
    assert (hello.sni, hello.ech) == (b"web.test", True)


@pytest.mark.parametrize(
    "first",
    [
        with_extension(0, b"\0\x0b\0\0\x08bad.test"),  # the name twice
        with_extension(10, b"")[:-1] + b"x" * 20,
        b"\x16\x02\x00\x00\x05hello",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01x",  # a ServerHello
        b"\x16\x03\x01\x40\x01" + b"\1" * 100,
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\0" * 70000,
    ],
)
def test_a_hello_that_two_readers_could_read_differently_is_none(first: bytes):
    with pytest.raises(MalformedHello):
        read_hello(first)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"", None),
        (b"\x16", "tls"),
        (b"GET", None),
        (b"GET ", "http"),
        (b"M-SEARCH * HTTP/1.1", "http"),
        (b"PRI * ", None),
        (H2_PREFACE, "h2"),
        (b"PROPFIND /", "http"),
        (b"SSH-2.0-client\r\n", "other"),
        (b"\0\0\0\x08", "other"),
        (b" GET /", "other"),
        (b"A" * 25, "other"),
    ],
)
def test_what_the_first_bytes_begin(first: bytes, kind: str | None):
    assert looks_like(first) == kind


def four(protocol: int, inner: bytes, *, offset: int = 0) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(inner), 1, offset, 64, protocol, 0)
    return head + socket.inet_aton("198.18.0.1") + socket.inet_aton("192.0.2.7") + inner


def six(protocol: int, inner: bytes) -> bytes:
    source, target = (socket.inet_pton(socket.AF_INET6, text) for text in ("::1", "2001:db8::7"))
    return struct.pack("!IHBB", 6 << 28, len(inner), protocol, 64) + source + target + inner


QUIC = b"\xc3\0\0\0\1\x08nonce"
UDP = struct.pack("!HHHH", 40000, 443, 20, 0)


@pytest.mark.parametrize(
    ("ethertype", "data", "told"),
    [
        (0x0800, four(17, UDP + b"nonce"), ("udp", "udp", "192.0.2.7", 443, b"nonce", "")),
        (0x86DD, six(17, UDP + b"nonce"), ("udp", "udp", "2001:db8::7", 443, b"nonce", "")),
        (0x0800, four(17, UDP + QUIC), ("udp", "udp", "192.0.2.7", 443, QUIC, "QUIC")),
        (0x0800, four(1, b"\x08\0\0\0\0\1\0\1nonce"), ("icmp", "icmp", "192.0.2.7", 0, b"nonce", "type 8")),
        (0x86DD, six(58, b"\x80\0\0\0\0\1\0\1nonce"), ("icmp", "icmpv6", "2001:db8::7", 0, b"nonce", "type 128")),
        (0x0800, four(47, b"tunnel"), ("packet", "gre", "192.0.2.7", 0, b"tunnel", "")),
        (0x0800, four(132, b"\0" * 12), ("packet", "sctp", "192.0.2.7", 0, b"\0" * 12, "")),
        (0x0800, four(17, b"rest", offset=5), ("packet", "udp", "192.0.2.7", 0, b"rest", "fragment")),
        (0x86DD, six(0, b"\x11\0\1\4\0\0\0\0" + UDP + b"n"), ("udp", "udp", "2001:db8::7", 443, b"n", "")),
        (0x0806, b"arp", ("packet", "ethertype 0x0806", "", 0, b"arp", "")),
        (0x0800, b"\x45", ("packet", "ethertype 0x0800", "", 0, b"\x45", "")),
    ],
)  # fmt: skip
def test_a_packet_is_told_by_protocol_target_and_payload(ethertype: int, data: bytes, told: tuple[object, ...]):
    packet = read(ethertype, data)
    assert (packet.kind, packet.protocol, packet.target, packet.port, packet.payload, packet.label) == told


LIMIT = settings(max_examples=200 if "CAISSON_FUZZ_SECONDS" not in os.environ else 100_000, deadline=None)


@pytest.mark.fuzz
@LIMIT
@given(st.binary(max_size=300), st.sampled_from((b"", b"\x16\x03\x01", client_hello("a.test")[:60])))
def test_no_first_bytes_do_anything_else_than_to_be_read_or_refused(data: bytes, begin: bytes):
    looks_like(begin + data)
    try:
        read_hello(begin + data)
    except MalformedHello:
        pass


@pytest.mark.fuzz
@LIMIT
@given(st.sampled_from((0x0800, 0x86DD, 0x0806)), st.binary(max_size=120))
def test_every_packet_is_told_somehow(ethertype: int, data: bytes):
    assert read(ethertype, data).kind in ("tcp", "udp", "icmp", "packet")
