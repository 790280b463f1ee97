"""What the first bytes of a connection are: a TLS ClientHello with its server name, an HTTP request, or something else.

Pure: each function looks at the bytes read so far and says ``None`` when it needs more of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

MAX_HELLO: Final = 1 << 16
"""Bytes of records that may hold one ClientHello; real ones have a few hundred, post-quantum ones below 4 KiB."""
H2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SNI, _ECH = 0, 0xFE0D
_REQUEST = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,24} ")
_REQUEST_SO_FAR = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,24}")


class MalformedHello(Exception):
    """TLS records that hold no ClientHello as any client sends it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Of a ClientHello: the server name as sent, and whether it asks for an encrypted inner one."""

    sni: bytes | None
    ech: bool


def looks_like(first: bytes) -> Literal["tls", "http", "h2", "other"] | None:
    """What the bytes begin; None for too few to say."""
    if not first:
        return None
    if first[0] == 0x16:
        return "tls"
    if H2_PREFACE.startswith(first[: len(H2_PREFACE)]):
        return "h2" if len(first) >= len(H2_PREFACE) else None
    if _REQUEST.match(first):
        return "http"
    return None if len(first) <= 24 and _REQUEST_SO_FAR.fullmatch(first) else "other"


def read_hello(first: bytes) -> Hello | None:
    """The ClientHello at the start of a connection, also when it is spread over records; None for not yet whole."""
    message = bytearray()
    at = 0
    while True:
        if len(first) < at + 5:
            break
        kind, major = first[at], first[at + 1]
        size = int.from_bytes(first[at + 3 : at + 5])
        if kind != 0x16 or major != 3 or not 0 < size <= 1 << 14:
            raise MalformedHello("no handshake record")
        message += first[at + 5 : at + 5 + size]
        if message and message[0] != 1:
            raise MalformedHello("the handshake begins with something else than a ClientHello")
        if len(message) >= 4 and len(message) >= (whole := 4 + int.from_bytes(message[1:4])):
            return _parse(bytes(message[4:whole]))
        if len(first) < at + 5 + size:
            break
        at += 5 + size
    if len(first) >= MAX_HELLO:
        raise MalformedHello(f"no whole ClientHello in {MAX_HELLO} bytes")
    return None


class _Walk:
    """Fields of a message, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise MalformedHello("a field is longer than what holds it")
        self.at += size
        return self.data[self.at - size : self.at]

    def vector(self, length_bytes: int) -> bytes:
        return self.take(int.from_bytes(self.take(length_bytes)))

    @property
    def left(self) -> bool:
        return self.at < len(self.data)


def _parse(body: bytes) -> Hello:
    walk = _Walk(body)
    walk.take(2 + 32)
    walk.vector(1)
    walk.vector(2)
    walk.vector(1)
    sni: bytes | None = None
    ech = False
    seen: set[int] = set()
    if walk.left:
        extensions = _Walk(walk.vector(2))
        if walk.left:
            raise MalformedHello("bytes after the extensions")
        while extensions.left:
            kind = int.from_bytes(extensions.take(2))
            value = extensions.vector(2)
            if kind in seen:
                raise MalformedHello("an extension twice")
            seen.add(kind)
            if kind == _SNI:
                sni = _name(value)
            elif kind == _ECH:
                ech = True
    return Hello(sni, ech)


def _name(value: bytes) -> bytes:
    """The one host name of the extension: several, or another type, mean different things to different servers."""
    names = _Walk(value)
    entries = _Walk(names.vector(2))
    if names.left or not entries.left or entries.take(1) != b"\0":
        raise MalformedHello("a server name that is no host name")
    name = entries.vector(2)
    if entries.left or not name:
        raise MalformedHello("more than one server name, or an empty one")
    return name
