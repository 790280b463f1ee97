"""Canonical request paths and queries, and the globs that match them.

What is matched is what is sent upstream. A path that servers read in more than one way is malformed: encoded dots,
slashes and backslashes, doubled slashes, backslashes, path parameters, and anything that is no URI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

MAX_PATH = 16_384
"""Longer paths and queries are malformed unread."""

_PLAIN = re.compile(rb"(?:/[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9._~!$&'()*+,=:@-]*)*/?")
"""The common case: nothing encoded, no segment that begins with a dot, no empty segment but the last."""
_CHARACTERS = re.compile(rb"/(?:[A-Za-z0-9._~!$&'()*+,=:@/-]|%[0-9A-Fa-f]{2})*")
_AMBIGUOUS = re.compile(rb"//|%(?:25)?(?:2[eEfF]|5[cC])|%00|%[cC][01]")
"""Also encoded twice, and as the over-long UTF-8 that some servers decode."""
_UNWISE = re.compile(rb'["<>\[\]^`{|}]')
"""No part of a URI, and yet sent by many clients; read by all as what they encode to."""
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~")
_SCOPED = re.compile(rb"(/@[A-Za-z0-9_~-][A-Za-z0-9._~-]*)%2[fF](?=[A-Za-z0-9_~-])")
"""npm writes `/@scope%2fname`. Matched and sent as `/@scope/name`, which the same servers answer alike."""
_QUERY = re.compile(rb"(?:[\x21\x22\x24-\x7e])*")


class MalformedPath(ValueError):
    """This is no path, or not one path only."""


def canonical_path(raw: bytes) -> bytes:
    """The path without its query, in the one form that is matched and sent on."""
    if len(raw) > MAX_PATH:
        raise MalformedPath("the path is too long")
    if raw and _PLAIN.fullmatch(raw):
        return raw
    raw = _SCOPED.sub(rb"\1/", raw)
    if not raw:
        return b"/"
    raw = _UNWISE.sub(lambda match: b"%%%02X" % match[0][0], raw)
    if not _CHARACTERS.fullmatch(raw):
        raise MalformedPath("the path holds a byte that no path can hold, or parameters")
    if _AMBIGUOUS.search(raw):
        raise MalformedPath("the path holds a doubled slash, or an encoded dot, slash or backslash")
    raw = _ESCAPE.sub(_decode, raw)
    kept: list[bytes] = []
    segments = raw.split(b"/")[1:]
    for at, segment in enumerate(segments):
        last = at == len(segments) - 1
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment != b".":
            kept.append(segment)
            continue
        if last:
            kept.append(b"")
    return b"/" + b"/".join(kept)


def _decode(match: re.Match[bytes]) -> bytes:
    value = int(match[0][1:], 16)
    return bytes((value,)) if value in _UNRESERVED else match[0].upper()


def check_query(raw: bytes) -> None:
    """Printable ASCII without blanks and fragment marks, of bounded length; else malformed."""
    if len(raw) > MAX_PATH or not _QUERY.fullmatch(raw):
        raise MalformedPath("the query holds a byte that no query can hold, or is too long")


def query_pairs(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """Decoded keys and values of `a=b&c=d`; None when it cannot be read in one way only."""
    pairs = []
    for part in raw.split(b"&"):
        key, _, value = part.partition(b"=")
        decoded = []
        for piece in (key, value):
            piece = piece.replace(b"+", b" ")
            if piece.count(b"%") != len(_ESCAPE.findall(piece)) or b";" in piece:
                return None
            decoded.append(_ESCAPE.sub(lambda match: bytes((int(match[0][1:], 16),)), piece))
        pairs.append((decoded[0], decoded[1]))
    return pairs


@dataclass(frozen=True, slots=True)
class Glob:
    """Segments of a path: `*` is any part of one segment, `**` alone any number of segments, also none.

    So `/a/**` is `/a` and all below it. Case counts, except where ``folded``.
    """

    text: str
    segments: tuple[bytes, ...]
    everything: bool = False
    folded: bool = False
    literal: bytes | None = None
    """The whole path, or what stands before a last `/**`, where nothing else of the pattern is a star."""
    below: bytes | None = None
    """With a last `/**`: what the paths below begin with."""

    @classmethod
    def parse(cls, text: str, folded: bool = False) -> Glob:
        """Raises MalformedPath with what is wrong with the pattern."""
        if not text.startswith("/"):
            raise MalformedPath("begins with no /")
        segments = text.split("/")[1:]
        if any("**" in segment and segment != "**" for segment in segments):
            raise MalformedPath("has ** beside other characters of a segment; ** stands alone between slashes")
        if any(one == two == "**" for one, two in pairwise(segments)):
            raise MalformedPath("has ** twice in a row; once is enough")
        if not text.isascii():
            raise MalformedPath("is not ASCII; write other characters as %XX")
        if text != "/**":
            sample = "/" + "/".join(segments).replace("**", "x").replace("*", "x")
            if canonical_path(sample.encode()) != sample.encode():
                raise MalformedPath("is not in canonical form, so it would match nothing")
        raw = text.encode()
        raw = raw.lower() if folded else raw
        base = raw.removesuffix(b"/**")
        literal = None if b"*" in base else base
        below = base + b"/" if literal is not None and base != raw else None
        return cls(text, tuple(raw.split(b"/")[1:]), text == "/**", folded, literal, below)

    def matches(self, path: bytes) -> bool:
        """Whether a canonical path is meant."""
        if self.everything:
            return True
        if self.folded:
            path = path.lower()
        if self.literal is not None:
            return path == self.literal or (self.below is not None and path.startswith(self.below))
        return _segments_match(self.segments, path.split(b"/")[1:])


def _segments_match(pattern: tuple[bytes, ...], segments: list[bytes]) -> bool:
    """Linear in the product of both lengths: goes back to the last `**` only."""
    at = here = 0
    star, mark = -1, 0
    while here < len(segments):
        if at < len(pattern) and pattern[at] == b"**":
            star, mark, at = at, here, at + 1
        elif at < len(pattern) and _segment_matches(pattern[at], segments[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            mark += 1
            at, here = star + 1, mark
        else:
            return False
    return at == len(pattern) or (at == len(pattern) - 1 and pattern[at] == b"**")


def _segment_matches(pattern: bytes, segment: bytes) -> bool:
    if b"*" not in pattern:
        return pattern == segment
    head, *middle, tail = pattern.split(b"*")
    if len(segment) < len(head) + len(tail) or not segment.startswith(head) or not segment.endswith(tail):
        return False
    at, end = len(head), len(segment) - len(tail)
    for part in middle:
        found = segment.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
