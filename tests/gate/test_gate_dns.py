"""A DNS question is read from the wire to the letter, and whatever is not one is no question."""

from __future__ import annotations

import os
import struct

import pytest
from caisson_gate import dns
from dnslib import EDNS0, QTYPE, DNSRecord
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def packet(*labels: bytes, kind: int = 1, group: int = 1, count: int = 1, more: bytes = b"", extra: int = 0) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    head = struct.pack("!6H", 4711, 0x0100, count, 0, 0, extra)
    return head + (name + struct.pack("!2H", kind, group)) * max(count, 1) + more


def test_a_question_is_read_and_its_answer_says_the_asker_s_case():
    question = dns.read(packet(b"Docs", b"Example", b"TEST"))
    assert (question.name, question.raw, question.kind_name) == ("docs.example.test", b"Docs.Example.TEST", "A")
    reply = DNSRecord.parse(dns.answer(question, lambda: "198.18.1.7").reply)
    assert (reply.header.id, reply.header.rcode, str(reply.q.qname)) == (4711, 0, "Docs.Example.TEST.")
    assert str(reply.rr[0].rdata) == "198.18.1.7"


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "SRV", "NS"])
def test_an_allowed_name_has_no_other_records(kind: str):
    question = dns.read(packet(b"docs", b"test", kind=QTYPE.reverse[kind]))
    reply = DNSRecord.parse(dns.answer(question, lambda: "198.18.1.7").reply)
    assert (reply.header.rcode, reply.rr) == (0, [])


def test_a_name_that_is_not_allowed_does_not_exist():
    question = dns.read(packet(b"docs", b"test"))
    reply = DNSRecord.parse(dns.answer(question, None).reply)
    assert (reply.header.rcode, reply.rr, reply.auth) == (3, [], [])


def test_extended_dns_is_understood():
    asked = DNSRecord.question("docs.test", "A")
    asked.add_ar(EDNS0(udp_len=1232))
    assert dns.read(bytes(asked.pack())).name == "docs.test"


LONG = [b"a" * 63] * 3 + [b"a" * 62]
WRONG = {
    "empty": b"",
    "shorter than a header": b"\0" * 11,
    "an answer": struct.pack("!6H", 1, 0x8180, 1, 0, 0, 0) + packet(b"a", b"test")[12:],
    "another operation": struct.pack("!6H", 1, 0x2900, 1, 0, 0, 0) + packet(b"a", b"test")[12:],
    "no question": packet(b"a", b"test", count=0),
    "two questions": packet(b"a", b"test", count=2),
    "a dot in a label": packet(b"a.web", b"test"),
    "a NUL in a label": packet(b"a\0b", b"test"),
    "an upper half byte": packet(b"\xc3\xa9", b"test"),
    "a pointer to itself": struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\xc0\x0c" + struct.pack("!2H", 1, 1),
    "reserved length bits": struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\x41" + b"a" * 65 + b"\0\0\1\0\1",
    "a name too long": packet(*LONG),
    "no end of the name": packet(b"a", b"test")[:-5],
    "no type": packet(b"a", b"test")[:-4],
    "the class CHAOS": packet(b"version", b"bind", group=3),
    "bytes after the end": packet(b"a", b"test") + b"nonce",
    "a record that is not EDNS": packet(b"a", b"test", more=b"\0\0\1\0\1\0\0\0\0\0\0", extra=1),
    "EDNS that is cut": packet(b"a", b"test", more=b"\0\0\x29\0\0\0", extra=1),
    "space in a name": packet(b"a b", b"test"),
    "an empty name": packet(),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_out_of_the_ordinary_is_no_question(what: str):
    with pytest.raises(dns.Malformed):
        dns.read(WRONG[what])


def test_a_refusal_repeats_nothing_of_the_packet_but_its_number():
    assert dns.refuse(4711) == struct.pack("!6H", 4711, 0x8001, 0, 0, 0, 0)


LIMIT = settings(max_examples=200 if "CAISSON_FUZZ_SECONDS" not in os.environ else 100_000, deadline=None)


@pytest.mark.fuzz
@LIMIT
@given(st.binary(max_size=600))
def test_no_packet_does_anything_else_than_to_be_read_or_refused(data: bytes):
    try:
        question = dns.read(data)
    except dns.Malformed as problem:
        assert problem.id is None or len(dns.refuse(problem.id)) == 12
        return
    check(question)


@pytest.mark.fuzz
@LIMIT
@given(st.lists(st.binary(min_size=1, max_size=63), max_size=6), st.integers(0, 65535), st.binary(max_size=12))
def test_a_name_is_taken_only_when_every_reader_reads_the_same(labels: list[bytes], kind: int, tail: bytes):
    data = packet(*labels, kind=kind) + tail
    try:
        question = dns.read(data)
    except dns.Malformed:
        return
    assert not tail
    check(question)
    assert DNSRecord.parse(data).q.qname.label == tuple(labels)


def check(question: dns.Question) -> None:
    assert question.name
    assert len(question.name) < 254
    assert question.name == question.name.lower()
    assert question.name.split(".") == [label.decode().lower() for label in question.labels]
    for address in (lambda: "198.18.1.7", None):
        reply = DNSRecord.parse(dns.answer(question, address).reply)
        assert reply.header.id == question.id
        assert reply.header.rcode == (3 if address is None else 0)
