"""The canonical record in a bundle: zstd frames of whole records, and an index of them by position, time and pid.

``witness/events.bin.zst`` is in the seekable form of zstd: frames that can be unpacked alone, then a seek table in a
skippable frame. Any zstd unpacks it to the canonical record. ``witness/events.index.json`` says of every frame where it
lies and which sequence numbers, times and pids it holds, so that a reader unpacks only what it needs, a frame at a
time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Final

import zstandard
from caisson_proto.record import MAX_RECORD, Record, RecordError, decode, heads

from caisson_runner.bundle.canonical import dump_line
from caisson_runner.bundle.errors import BundleDamaged

EVENTS: Final = "witness/events.bin.zst"
INDEX: Final = "witness/events.index.json"
INDEX_FORMAT: Final = "caisson.index/v1"

FRAME: Final = 1 << 20
"""Bytes of record in a frame, about: a frame ends with the last record that begins and ends within so many."""

MAX_FRAME: Final = FRAME + MAX_RECORD
MAX_RANGES: Final = 32
"""Ranges of pids for a frame; where it has more, the nearest are joined: some are read in vain, none is missed."""

_SKIPPABLE: Final = 0x184D2A5E
_SEEKABLE: Final = 0x8F92EAB1
_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its place in the file, and of its records how many there are and what they lie between."""

    offset: int
    size: int
    raw: int
    count: int
    position: int
    """Records before it."""
    first_seq: int
    last_seq: int
    first_ns: int
    last_ns: int
    pids: tuple[tuple[int, int], ...]
    """Ranges, both ends included, that hold every pid of the frame."""

    def row(self) -> list[Any]:
        """As the index holds it."""
        return [
            self.offset, self.size, self.raw, self.count, self.position, self.first_seq, self.last_seq, self.first_ns,
            self.last_ns, [list(pair) for pair in self.pids],
        ]  # fmt: skip

    def may_hold(self, wanted: Wanted) -> bool:
        """False when no record of the frame can be wanted."""
        if self.last_ns < wanted.start or self.last_seq < wanted.seq:
            return False
        if wanted.end is not None and self.first_ns >= wanted.end:
            return False
        return wanted.pid is None or any(low <= wanted.pid <= high for low, high in self.pids)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records: from time ``start`` to before ``end`` (CLOCK_BOOTTIME ns), of one process, from ``seq`` on."""

    start: int = 0
    end: int | None = None
    pid: int | None = None
    seq: int = 0

    @property
    def everything(self) -> bool:
        return self == _EVERYTHING


_EVERYTHING: Final = Wanted()


@dataclass(frozen=True, slots=True)
class Index:
    """All frames of a record, in its order."""

    frames: tuple[Frame, ...]

    @property
    def records(self) -> int:
        return sum(frame.count for frame in self.frames)

    @property
    def raw(self) -> int:
        """Bytes of the canonical record."""
        return sum(frame.raw for frame in self.frames)

    def dumps(self) -> bytes:
        return dump_line({"format": INDEX_FORMAT, "frames": [frame.row() for frame in self.frames]})

    @classmethod
    def parse(cls, value: object) -> Index:
        """Reads strictly: every number in its bounds, every frame where the one before ends."""
        try:
            if not isinstance(value, dict) or set(value) != {"format", "frames"} or value["format"] != INDEX_FORMAT:
                raise ValueError(f"it is not of the form {INDEX_FORMAT}")
            offset = position = 0
            frames = []
            for row in value["frames"]:
                offset_, size, raw, count, position_, *bounds, pids = row
                first_seq, last_seq, first_ns, last_ns = bounds
                numbers = [offset_, size, raw, count, position_, *bounds]
                frame = Frame(
                    offset_, size, raw, count, position_, first_seq, last_seq, first_ns, last_ns,
                    tuple((low, high) for low, high in pids),
                )  # fmt: skip
                flat = [*numbers, *(one for pair in frame.pids for one in pair)]
                if any(type(one) is not int or not 0 <= one < 1 << 64 for one in flat):
                    raise ValueError(f"the frame at {offset} has a number out of bounds")
                if frame.offset != offset or frame.position != position or not 0 < frame.raw <= MAX_FRAME:
                    raise ValueError(f"the frame at {offset} does not follow the one before")
                offset, position = offset + frame.size, position + frame.count
                frames.append(frame)
        except (ValueError, TypeError, KeyError) as error:
            raise BundleDamaged(f"{INDEX} is no index of a record: {error}", INDEX) from None
        return cls(tuple(frames))


def write_record(chunks: Iterable[bytes], out: BinaryIO) -> Index:
    """Packs a canonical record that arrives in pieces of any size; holds one frame at a time.

    Raises `RecordError` when it is not one.
    """
    pack = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True).compress
    frames: list[Frame] = []
    offset = position = 0
    for raw, rows in _frames(chunks):
        packed = pack(raw)
        out.write(packed)
        seqs, times, pids = zip(*rows, strict=True)
        bounds = (min(seqs), max(seqs), min(times), max(times))
        frames.append(Frame(offset, len(packed), len(raw), len(rows), position, *bounds, ranges(pids)))
        offset, position = offset + len(packed), position + len(rows)
    out.write(_seek_table(frames))
    return Index(tuple(frames))


def _frames(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, list[tuple[int, int, int]]]]:
    """Whole records of about `FRAME` bytes, each with its sequence number, time and pid."""
    rest = b""
    position = offset = 0
    for piece in _pieces(chunks):
        data = rest + piece if rest else piece
        rows = []
        end = 0
        for at, size, seq, time_ns, pid in heads(data, position=position, offset=offset):
            rows.append((seq, time_ns, pid))
            end = at + size
        if rows:
            yield data[:end], rows
        position, offset, rest = position + len(rows), offset + end, data[end:]
    if rest:
        raise RecordError(offset, f"ends after {len(rest)} bytes")


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of `FRAME`."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        while len(gathered) >= FRAME:
            yield bytes(gathered[:FRAME])
            del gathered[:FRAME]
    if gathered:
        yield bytes(gathered)


def ranges(pids: Iterable[int], most: int = MAX_RANGES) -> tuple[tuple[int, int], ...]:
    """At most ``most`` ranges that hold all ``pids``, as tight as the widest gaps between them allow."""
    there = sorted(set(pids))
    gaps = sorted(
        (at for at in range(1, len(there)) if there[at] - there[at - 1] > 1),
        key=lambda at: there[at - 1] - there[at],
    )
    edges = [0, *sorted(gaps[: most - 1]), len(there)]
    return tuple((there[low], there[high - 1]) for low, high in pairwise(edges) if low < high)


def _seek_table(frames: list[Frame]) -> bytes:
    rows = b"".join(struct.pack("<II", frame.size, frame.raw) for frame in frames)
    table = rows + struct.pack("<IBI", len(frames), 0, _SEEKABLE)
    return struct.pack("<II", _SKIPPABLE, len(table)) + table


_EMPTY: Final = (1 << 64, -1, 1 << 64, -1)
"""Lowest and highest number, first and last time of no record."""


def check_record(file: BinaryIO, index: Index) -> None:
    """Raises `BundleDamaged` when the index does not say what the record holds.

    Readers skip what the index says they do not want: an index that lies hides events from them, and so do frames it
    does not know and bytes behind the last record of one.
    """
    unpack = zstandard.ZstdDecompressor().decompress
    done = at = 0
    for frame in index.frames:
        raw = _unpacked(file, frame, unpack)
        bounds, pids = _EMPTY, set[int]()
        count = end = 0
        try:
            for where, size, seq, time_ns, pid in heads(raw, position=frame.position, offset=done):
                count, end = count + 1, where + size
                low, high, first, last = bounds
                bounds = min(low, seq), max(high, seq), min(first, time_ns), max(last, time_ns)
                pids.add(pid)
        except RecordError as error:
            raise BundleDamaged(f"{EVENTS} cannot be read: {error}", EVENTS) from None
        if not count or count != frame.count or end != len(raw):
            raise _misled(frame, f"{frame.count} records of {frame.raw} bytes")
        told = frame.first_seq, frame.last_seq, frame.first_ns, frame.last_ns
        if bounds != told or not all(_within(pid, frame) for pid in pids):
            raise _misled(frame, "records of these numbers, times and pids")
        done, at = done + frame.raw, frame.offset + frame.size
    file.seek(at)
    table = _seek_table(list(index.frames))
    if file.read(len(table) + 1) != table:
        raise BundleDamaged(f"{INDEX} does not say what {EVENTS} holds: it knows {len(index.frames)} frames", INDEX)


def _within(pid: int, frame: Frame) -> bool:
    return any(low <= pid <= high for low, high in frame.pids)


def _misled(frame: Frame, what: str) -> BundleDamaged:
    return BundleDamaged(f"{INDEX} does not say what {EVENTS} holds: at byte {frame.offset} are not {what}", INDEX)


def read_record(file: BinaryIO, index: Index, wanted: Wanted = _EVERYTHING) -> Iterator[Record]:
    """The wanted records of a packed one, in its order, a frame in memory at a time."""
    unpack = zstandard.ZstdDecompressor().decompress
    done = 0
    for frame in index.frames:
        if frame.may_hold(wanted):
            raw = _unpacked(file, frame, unpack)
            if wanted.everything:
                found = decode(raw, position=frame.position, offset=done)
            else:
                found = _picked(raw, frame, done, wanted)
            yield from found
        done += frame.raw


def _unpacked(file: BinaryIO, frame: Frame, unpack: Any) -> bytes:
    file.seek(frame.offset)
    packed = file.read(frame.size)
    try:
        if zstandard.frame_content_size(packed) != frame.raw:
            raise zstandard.ZstdError(f"it does not hold {frame.raw} bytes")
        raw: bytes = unpack(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        message = f"{EVENTS} cannot be read: its frame at byte {frame.offset} is damaged ({error})"
        raise BundleDamaged(message, EVENTS) from None
    return raw


def _picked(raw: bytes, frame: Frame, done: int, wanted: Wanted) -> Iterator[Record]:
    view = memoryview(raw)
    position = frame.position
    for at, size, seq, time_ns, pid in heads(view, position=frame.position, offset=done):
        if (
            seq >= wanted.seq
            and time_ns >= wanted.start
            and (wanted.end is None or time_ns < wanted.end)
            and (wanted.pid is None or pid == wanted.pid)
        ):
            yield from decode(view[at : at + size], position=position, offset=done + at)
        position += 1
