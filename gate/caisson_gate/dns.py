"""DNS for a box: synthetic answers for the names it may ask for, no such name for every other, and nothing forwarded.

The question is read from the wire by hand and strictly: dnslib takes labels that hold dots or NUL, names that are too
long, and packets with two questions or none for something else than they are. dnslib builds the answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dnslib import QTYPE, RCODE, RR, A, DNSHeader, DNSLabel, DNSQuestion, DNSRecord

from caisson_gate.names import MalformedName, from_wire

TTL: Final = 60
MAX_QUERY: Final = 4096
_HEADER: Final = struct.Struct("!6H")
_IN, _A, _ANY, _OPT = 1, 1, 255, 41
_QUERY_BITS: Final = 0x8000 | 0x7800 | 0x0200
"""Of the header: an answer, another operation than a query, cut short."""


class Malformed(Exception):
    """A packet that is no well-formed question. ``id`` is its number when it has one."""

    def __init__(self, problem: str, number: int | None = None) -> None:
        super().__init__(problem)
        self.id = number


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked. ``labels`` are as on the wire, ``name`` is canonical."""

    id: int
    bits: int
    labels: tuple[bytes, ...]
    name: str
    kind: int

    @property
    def raw(self) -> bytes:
        """The name as asked."""
        return b".".join(self.labels)

    @property
    def kind_name(self) -> str:
        """``A``, ``AAAA``, …; the number where there is no name."""
        return kind_name(self.kind)


def kind_name(kind: int) -> str:
    """A record type's name; its number where it has none."""
    return str(QTYPE.get(kind))


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to send, and what it says: an address, ``empty`` or ``nxdomain``."""

    reply: bytes
    said: str


def read(packet: bytes) -> Question:
    """The question of a packet. Malformed unless it is exactly one, in the ordinary form."""
    if len(packet) < _HEADER.size:
        raise Malformed("shorter than a header")
    number, bits, questions, answers, authorities, more = _HEADER.unpack_from(packet)
    if bits & 0x8000:
        raise Malformed("an answer, not a question")
    if len(packet) > MAX_QUERY:
        raise Malformed("too long", number)
    if bits & _QUERY_BITS:
        raise Malformed("not a plain query", number)
    if questions != 1 or answers or authorities or more > 1:
        raise Malformed(f"{questions} questions, {answers + authorities + more} records", number)
    labels, at = _labels(packet, number)
    if not labels:
        raise Malformed("the root is no host", number)
    if len(packet) < at + 4:
        raise Malformed("cut short in the question", number)
    kind, group = struct.unpack_from("!2H", packet, at)
    if group != _IN:
        raise Malformed(f"class {group}", number)
    _check_rest(packet, at + 4, more, number)
    try:
        name = from_wire(labels).text
    except MalformedName as problem:
        raise Malformed(str(problem), number) from None
    return Question(number, bits, labels, name, kind)


def _labels(packet: bytes, number: int) -> tuple[tuple[bytes, ...], int]:
    """The question's name, and where it ends. A question has nothing before it that a pointer could mean."""
    labels: list[bytes] = []
    at = _HEADER.size
    while True:
        if at >= len(packet):
            raise Malformed("cut short in the name", number)
        size = packet[at]
        if size > 63:
            raise Malformed("a pointer or reserved bits in the name", number)
        at += 1
        if size == 0:
            break
        if at + size > len(packet):
            raise Malformed("cut short in a label", number)
        labels.append(bytes(packet[at : at + size]))
        at += size
        if at - _HEADER.size + 1 > 255:
            raise Malformed("a name of more than 255 octets", number)
    return tuple(labels), at


def _check_rest(packet: bytes, at: int, records: int, number: int) -> None:
    """After the question: nothing, or one EDNS record that ends the packet."""
    if records:
        if len(packet) < at + 11 or packet[at] != 0:
            raise Malformed("an additional record that is not EDNS", number)
        kind, _, _, size = struct.unpack_from("!HHIH", packet, at + 1)
        if kind != _OPT:
            raise Malformed("an additional record that is not EDNS", number)
        at += 11 + size
    if at != len(packet):
        raise Malformed("bytes after the end", number)


def answer(question: Question, address: Callable[[], str] | None) -> Answer:
    """The reply: ``address`` gives the name's synthetic one; None for a name the box may not ask for."""
    reply = DNSRecord(
        DNSHeader(id=question.id, bitmap=(question.bits & 0x0110) | 0x8480, rcode=RCODE.NOERROR),
        q=DNSQuestion(DNSLabel(list(question.labels)), question.kind, _IN),
    )
    if address is None:
        reply.header.rcode = RCODE.NXDOMAIN
        return Answer(bytes(reply.pack()), "nxdomain")
    if question.kind not in (_A, _ANY):
        return Answer(bytes(reply.pack()), "empty")
    given = address()
    reply.add_answer(RR(DNSLabel(list(question.labels)), QTYPE.A, rdata=A(given), ttl=TTL))
    return Answer(bytes(reply.pack()), given)


def refuse(number: int) -> bytes:
    """The reply to what could not be read: format error, and not a byte of the packet's own."""
    return _HEADER.pack(number, 0x8001, 0, 0, 0, 0)
