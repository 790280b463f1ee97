"""What is kept of a file's content, so that a change is not only seen but found.

The whole file's sha256 says *that* it was changed. Beside it stands a tag of 12 bytes for every block: 8 bytes of the
block's sha256 say *in which block* first, and its Adler-32, two sums over its bytes, says *which byte* when one byte of
the block was changed: the first sum gives by how much, the second, weighted by place, where. That answer is tried, not
believed: the byte is put back and the block's sha256 must agree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

_CHUNK: Final = 1 << 20
_PRIME: Final = 65_521
"""Of Adler-32. Places in a block are told apart only while it is shorter."""
_LEAST: Final = 1 << 10
_MOST: Final = 1 << 15
_SHA: Final = 8
TAG: Final = _SHA + 4


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

    ``was`` and ``now`` are known when it is one byte that was found exactly.
    """

    at: int
    end: int
    was: int | None = None
    now: int | None = None

    @property
    def exact(self) -> bool:
        return self.end == self.at + 1

    def __str__(self) -> str:
        if self.was is not None and self.now is not None:
            return f"byte {self.at} was {self.was:#04x} and is now {self.now:#04x}"
        if self.exact:
            return f"byte {self.at} is the first that differs"
        return f"the first change lies between byte {self.at} and byte {self.end - 1}"


def block_size(size: int) -> int:
    """Bytes of a block: 64 blocks or fewer for files up to 2 MiB, of 1 KiB at least and 32 KiB at most."""
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
    return hashlib.sha256(block).digest()[:_SHA] + zlib.adler32(block).to_bytes(4, "big")


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
            return _one_byte(block, tag, at) or Altered(at, at + length)
        at += length
    return Altered(at, at + 1) if file.read(1) else None


def _tag_at(entry: Entry, at: int) -> bytes:
    place = at // entry.block * TAG
    return entry.tags[place : place + TAG]


def _one_byte(block: bytes, tag: bytes, at: int) -> Altered | None:
    """Which byte of a block was changed, if it was only one and putting it back proves it.

    Adler-32 is a = 1 + Σ b_i and b = n + Σ (n - i) b_i, modulo a prime. With one byte changed by d, a differs by d and
    b by (n - i) d.
    """
    now, was = zlib.adler32(block), int.from_bytes(tag[_SHA:], "big")
    by = ((now & 0xFFFF) - (was & 0xFFFF)) % _PRIME
    weighted = ((now >> 16) - (was >> 16)) % _PRIME
    if not by:
        return None
    place = len(block) - weighted * pow(by, -1, _PRIME) % _PRIME
    delta = by if by < 256 else by - _PRIME
    if not 0 <= place < len(block) or not 0 <= block[place] - delta < 256:
        return None
    before = block[place] - delta
    mended = block[:place] + bytes([before]) + block[place + 1 :]
    if hashlib.sha256(mended).digest()[:_SHA] != tag[:_SHA]:
        return None
    return Altered(at + place, at + place + 1, before, block[place])
