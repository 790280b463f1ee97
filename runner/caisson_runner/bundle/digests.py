"""What is kept of a file's content, so that a change is not only seen but found.

The whole file's sha256 says *that* it was changed. Beside it stands a tag of 24 bytes for every block. 8 bytes of the
block's sha256 say *in which block* first. Four CRC-32, of every fourth byte each, say *which bytes*, when those that
were changed lie within 16: see `_burst`. That answer is tried, not believed: the bytes are put back and the block's
sha256 must agree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, BinaryIO, Final

from caisson_runner.bundle.canonical import escape

_CHUNK: Final = 1 << 20
_LEAST: Final = 1 << 10
_MOST: Final = 1 << 14
_SHA: Final = 8
_WAYS: Final = 4
"""Checksums of a block, each of every so many-th byte. Each finds 4 bytes that follow one another among its own."""
TAG: Final = _SHA + 4 * _WAYS
BURST: Final = 4 * _WAYS
"""Changed bytes that lie within so many are found exactly."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as a manifest names it. ``tags`` has one of `TAG` bytes for each ``block`` bytes."""

    sha256: str
    size: int
    block: int
    tags: bytes

    def to_json(self) -> dict[str, Any]:
        tags = base64.b64encode(self.tags).decode("ascii")
        return {"sha256": self.sha256, "size": self.size, "block": self.block, "tags": tags}

    @classmethod
    def parse(cls, value: object) -> Entry:
        """Reads strictly. Raises ValueError."""
        if not isinstance(value, dict) or set(value) != {"sha256", "size", "block", "tags"}:
            raise ValueError("it has not sha256, size, block and tags")
        sha256, size, block, tags = (value[key] for key in ("sha256", "size", "block", "tags"))
        if not isinstance(sha256, str) or len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise ValueError("its sha256 is none")
        if type(size) is not int or size < 0 or type(block) is not int or not 0 < block <= _MOST:
            raise ValueError("its size or block is out of bounds")
        try:
            raw = base64.b64decode(tags, validate=True) if isinstance(tags, str) else b""
        except binascii.Error:
            raw = b""
        if len(raw) != TAG * -(-size // block):
            raise ValueError("its tags do not match its size")
        return cls(sha256, size, block, raw)

    def difference(self, file: BinaryIO) -> Altered | None:
        """None when the file is this one; it is read a second time only when it is not."""
        if sha256_of(file) == (self.sha256, self.size):
            return None
        where = first_difference(file, self)
        return where if where is not None else Altered(0, self.size)


@dataclass(frozen=True, slots=True)
class Altered:
    """The first place of a file that is not as it was: byte ``at`` to before byte ``end``.

    ``was`` and ``now`` are what stood and stands there, when that was found exactly.
    """

    at: int
    end: int
    was: bytes | None = None
    now: bytes | None = None

    @property
    def exact(self) -> bool:
        """Whether ``at`` is the first byte that differs, not only before it."""
        return self.was is not None or self.end == self.at + 1

    def __str__(self) -> str:
        if self.was is not None and self.now is not None:
            if len(self.was) == 1:
                return f"byte {self.at} was {self.was[0]:#04x} and is now {self.now[0]:#04x}"
            was, now = escape(self.was), escape(self.now)
            return f'bytes {self.at} to {self.end - 1} were "{was}" and are now "{now}"'
        if self.exact:
            return f"byte {self.at} is the first that differs"
        return f"the first change lies between byte {self.at} and byte {self.end - 1}"


def block_size(size: int) -> int:
    """Bytes of a block: 64 blocks or fewer for files up to 1 MiB, of 1 KiB at least and 16 KiB at most."""
    block = _LEAST
    while block < _MOST and size > 64 * block:
        block *= 2
    return block


def entry_of(path: Path) -> Entry:
    """One file, read once in bounded memory."""
    with path.open("rb") as file:
        return _entry(file, os.fstat(file.fileno()).st_size)


def entry_of_bytes(data: bytes) -> Entry:
    """The same of what a file holds, or is to hold."""
    block = block_size(len(data))
    view = memoryview(data)
    tags = b"".join(_tag(view[at : at + block]) for at in range(0, len(data), block))
    return Entry(hashlib.sha256(data).hexdigest(), len(data), block, tags)


def _entry(file: BinaryIO, size: int) -> Entry:
    block = block_size(size)
    total = hashlib.sha256()
    tags: list[bytes] = []
    done = 0
    for chunk in _whole_chunks(file):
        total.update(chunk)
        done += len(chunk)
        view = memoryview(chunk)
        tags += [_tag(view[at : at + block]) for at in range(0, len(chunk), block)]
    return Entry(total.hexdigest(), done, block, b"".join(tags))


def _whole_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):  # a regular file: short only at its end
        yield chunk


def _tag(block: memoryview | bytes) -> bytes:
    data = bytes(block)
    sums = [zlib.crc32(data[way::_WAYS]).to_bytes(4, "big") for way in range(_WAYS)]
    return hashlib.sha256(data).digest()[:_SHA] + b"".join(sums)


def sha256_of(file: BinaryIO) -> tuple[str, int]:
    """sha256 and size, for those who only want to know whether it is as it was."""
    total = hashlib.sha256()
    size = 0
    for chunk in _whole_chunks(file):
        total.update(chunk)
        size += len(chunk)
    return total.hexdigest(), size


def first_difference(file: BinaryIO, entry: Entry) -> Altered | None:
    """The first place where a file is not what ``entry`` says; None when it is."""
    file.seek(0)
    at = 0
    while at < entry.size:
        length = min(entry.block, entry.size - at)
        block, tag = file.read(length), _tag_at(entry, at)
        if _tag(block) != tag:
            if len(block) < length:
                return Altered(at, at + len(block) + 1)  # cut somewhere here, or also changed before
            return _burst(block, tag, at) or Altered(at, at + length)
        at += length
    return Altered(at, at + 1) if file.read(1) else None


def _tag_at(entry: Entry, at: int) -> bytes:
    place = at // entry.block * TAG
    return entry.tags[place : place + TAG]


def _burst(block: bytes, tag: bytes, at: int) -> Altered | None:
    """Which bytes of a block were changed, if they lie within `BURST` and putting them back proves it.

    CRC-32 is linear: the checksums before and after differ by that of the difference, whatever the rest holds. A
    difference of 4 bytes at one place is its register's content there, so running the register backwards from the end
    gives for every place the only 4 bytes that could have been changed there. Every window of the block is tried.
    """
    fixes = []
    for way in range(_WAYS):
        was = int.from_bytes(tag[_SHA + 4 * way : _SHA + 4 * way + 4], "big")
        own = block[way::_WAYS]
        fixes.append(_differences(zlib.crc32(own) ^ was, len(own)))
    for changed in chain(_apart(fixes), _windows(fixes, len(block))):
        mended = bytearray(block)
        for place, by in changed:
            mended[place] ^= by
        if hashlib.sha256(mended).digest()[:_SHA] == tag[:_SHA]:
            first, last = min(changed)[0], max(changed)[0]
            return Altered(at + first, at + last + 1, bytes(mended[first : last + 1]), block[first : last + 1])
    return None


def _differences(checksum: int, length: int) -> list[int]:
    """For each of ``length`` places, the 4 bytes there (lowest first) that alone would change a CRC-32 by so much."""
    found = [0] * length
    for place in range(length - 1, -1, -1):
        checksum = (checksum << 8 & 0xFFFF_FFFF) ^ _BACKWARDS[checksum >> 24]
        found[place] = checksum
    return found


def _apart(fixes: list[list[int]]) -> Iterator[list[tuple[int, int]]]:
    """Changes of one byte at most in each checksum's own: up to four that follow one another. Found at once."""
    ways = []
    for way, fix in enumerate(fixes):
        if fix and fix[0]:  # all are zero, or none is
            ways.append([(way + _WAYS * place, by) for place, by in enumerate(fix) if by < 256])
    if ways:
        yield from (list(one) for one in islice(product(*ways), 64))


def _windows(fixes: list[list[int]], length: int) -> Iterator[list[tuple[int, int]]]:
    """For every place where `BURST` bytes could begin, the only change of them that the checksums allow."""
    for start in range(length):
        changed = []
        for way, fix in enumerate(fixes):
            first = max(0, -(-(start - way) // _WAYS))
            by = fix[first] if first < len(fix) else 0
            place = way + _WAYS * first
            while by:
                if by & 0xFF:
                    changed.append((place, by & 0xFF))
                by >>= 8
                place += _WAYS
        if changed and max(changed)[0] < length:
            yield changed


def _backwards() -> list[int]:
    """By the highest byte of CRC-32's register, what undoes the step that a byte of zeros made."""
    table = [0] * 256
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB8_8320 if value & 1 else 0)
        table[value >> 24] = (value << 8 & 0xFFFF_FFFF) ^ byte
    return table


_BACKWARDS: Final = _backwards()
