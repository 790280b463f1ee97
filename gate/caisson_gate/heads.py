"""Strict reading of an HTTP/1 request head, before anything else parses it.

Whatever two parsers could read in two ways is refused here: bare line feeds, folded lines, blanks before a colon, two
lengths, codings other than ``chunked``, control bytes. Pure; the rest of the gate sees only heads that passed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEAD: Final = 64 << 10
"""Of a whole head in bytes."""
MAX_FIELDS: Final = 200

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_HEAD = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])\r\n"
    rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n){0,%d}\r\n" % MAX_FIELDS
)
_FRAMING = re.compile(
    rb"\r\n(host|content-length|transfer-encoding|upgrade|trailer)[ \t]*:[ \t]*([^\r]*?)[ \t]*(?=\r\n)", re.I
)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")


class MalformedHead(ValueError):
    """The head is not one that can be read in one way only."""


class UnwantedProtocol(ValueError):
    """The head is well formed and asks for another protocol than the gate speaks."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the gate decides by, as sent."""

    method: bytes
    target: bytes
    host: bytes | None
    websocket: bool

    @property
    def absolute(self) -> tuple[bytes, bytes, bytes] | None:
        """Scheme, authority and path of an absolute-form target."""
        scheme, mark, rest = self.target.partition(b"://")
        if not mark or self.target.startswith(b"/"):
            return None
        cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        path = rest[cut:]
        return scheme.lower(), rest[:cut], path if path.startswith(b"/") else b"/" + path


def end_of_head(buffer: bytes | bytearray) -> int:
    """Length of the head at the start of the buffer; 0 while it is not whole. MalformedHead once it cannot be one."""
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end >= 0:
        return end + 4
    if len(buffer) >= MAX_HEAD:
        raise MalformedHead(f"the head is longer than {MAX_HEAD} bytes")
    if re.search(rb"(?<!\r)\n|\x00", buffer):
        raise MalformedHead("a line ends with a bare line feed, or holds a NUL")
    return 0


def read_head(head: bytes) -> Head:
    """A whole head, the empty line included. MalformedHead; UnwantedProtocol for upgrades and HTTP/2 in the clear."""
    if head.startswith(b"PRI * HTTP/2"):
        raise UnwantedProtocol("HTTP/2 without TLS")
    line = _HEAD.fullmatch(head)
    if line is None:
        raise MalformedHead(
            "the head is not HTTP/1: a folded line, a blank before a colon, a bare line feed, too many fields"
        )
    method, target, minor = line.group(1, 2, 3)
    found: dict[bytes, bytes] = {}
    for name, value in _FRAMING.findall(head):
        name = name.lower()
        if name in found:
            raise MalformedHead(f"two {name.decode()} fields")
        found[name] = value
    if b"host" not in found and minor == b"1":
        raise MalformedHead("no host field")
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if coding is not None and (length is not None or minor == b"0" or coding.lower() != b"chunked"):
        raise MalformedHead("a transfer coding beside a length, in HTTP/1.0, or other than chunked")
    if length is not None and not _LENGTH.fullmatch(length):
        raise MalformedHead("the length is no number")
    if b"trailer" in found:
        raise UnwantedProtocol("trailers")
    origin = target.startswith(b"/") or b"://" in target
    if not origin and method != b"CONNECT" and (method, target) != (b"OPTIONS", b"*"):
        raise MalformedHead("the target is no path")
    upgrade = found.get(b"upgrade")
    if upgrade is not None and upgrade.lower() != b"websocket":
        raise UnwantedProtocol(f"upgrade to {upgrade[:40]!r}")
    return Head(method, target, found.get(b"host"), upgrade is not None)
