"""The record for a page: one pass, columns instead of rows, packed for `DecompressionStream`; and what links need."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.activity import MAX_ITEMS, Identity
from caisson_runner.bundle.places import target, writes
from caisson_runner.bundle.reader import Bundle
from caisson_runner.export.scene import Actor, Actors, Scene
from caisson_runner.export.text import FAMILIES, command_line, errno_name, flag_names, shown, signal_name
from caisson_runner.report.events import LIMIT, label, subject

MAX_EVENTS: Final = 250_000
"""Events of a page. Where a record has more, ordinary opens and looks give way to all the rest."""

_POINTERS: Final = 3
_OPEN_FLAGS: Final = (
    (os.O_CREAT, "create"), (os.O_EXCL, "exclusive"), (os.O_TRUNC, "truncate"), (os.O_APPEND, "append"),
    (os.O_DIRECTORY, "directory"), (os.O_NOFOLLOW, "nofollow"), (os.O_PATH, "path only"),
)  # fmt: skip


@dataclass(slots=True)
class Told:
    """What one pass gives. ``packed`` is base64 of zlib of JSON: see `_Columns`."""

    packed: str = ""
    kept: int = 0
    total: int = 0
    first_ns: int = 0
    last_ns: int = 0
    ends: dict[Identity, int] = field(default_factory=dict)
    """When a process ended, or was last heard of."""
    owners: dict[int, tuple[Identity, int]] = field(default_factory=dict)
    """Of events that are pointed at: whose they are, and when."""
    by_path: dict[bytes, list[int]] = field(default_factory=dict)
    """Of the paths that were asked for: the first events that made them what they are."""


@dataclass(slots=True)
class _Column:
    """Values as numbers into the list of those that there are."""

    values: list[Any] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)

    def add(self, key: Any, value: Any = None) -> None:
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = len(self.values)
            self.values.append(key if value is None else value)
        self.rows.append(number)


@dataclass(slots=True)
class _Columns:
    seq: list[int] = field(default_factory=list)
    time: list[int] = field(default_factory=list)
    actor: _Column = field(default_factory=_Column)
    kind: _Column = field(default_factory=_Column)
    error: _Column = field(default_factory=_Column)
    what: _Column = field(default_factory=_Column)
    more: _Column = field(default_factory=_Column)

    def add(self, record: Record, actor: Actor) -> None:
        self.seq.append(record.seq)
        self.time.append(record.time_ns)
        key = (actor.pid, actor.start_ns, actor.began_ns)
        name = command_line(actor.argv, LIMIT) if actor.argv else f"({actor.name})"
        self.actor.add(key, [actor.pid, name, int(actor.harness)])
        self.kind.add(label(record))
        self.error.add(errno_name(record.error) or "")
        self.what.add(what(record))
        self.more.add(more(record))

    def packed(self, start: int) -> str:
        document = {
            "seq": _steps(self.seq, 0),
            "time": _steps(self.time, start),
            **{
                name: {"values": column.values, "rows": column.rows}
                for name in ("actor", "kind", "error", "what", "more")
                if (column := getattr(self, name)) is not None
            },
        }
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode("ascii")
        return base64.b64encode(zlib.compress(text, 6)).decode("ascii")


def _steps(values: list[int], last: int) -> list[int]:
    """Each as its distance from the one before: small numbers, which pack well."""
    found = []
    for value in values:
        found.append(value - last)
        last = value
    return found


def tell(
    bundle: Bundle, scene: Scene, pointed: Collection[int] = (), paths: Collection[bytes] = (), limit: int = MAX_EVENTS
) -> Told:
    """Reads the record once. Of more than ``limit`` events, those that are ``pointed`` at are always kept."""
    told = Told(total=bundle.index().records)
    columns, actors = _Columns(), Actors(scene.harness())
    crowded = told.total > limit
    room = limit // 2
    for record in bundle.records():
        told.first_ns = told.first_ns or record.time_ns
        told.last_ns = max(told.last_ns, record.time_ns)
        if record.identity in told.ends or len(told.ends) < MAX_ITEMS:
            told.ends[record.identity] = record.time_ns
        if record.seq in pointed:
            told.owners[record.seq] = (record.identity, record.time_ns)
        actor = actors.before(record)
        ordinary = record.kind in (Kind.OPEN, Kind.LOOK) and not writes(record)
        if not ordinary and not record.error:
            _note(told, record, paths)
        kept = not crowded or record.seq in pointed or (len(columns.seq) < (room if ordinary else limit))
        if kept and not _became(record):
            columns.add(record, actor)
        actors.after(record)
        if kept and _became(record):  # an exec is told by the program that it led to
            columns.add(record, actor)
    told.kept = len(columns.seq)
    told.packed = columns.packed(told.first_ns)
    return told


def _became(record: Record) -> bool:
    return record.kind is Kind.EXEC and not record.error


def _note(told: Told, record: Record, paths: Collection[bytes]) -> None:
    places = record.altered
    if record.kind is Kind.OPEN and (place := target(record)) is not None:
        places = (place,)
    for path in places:
        if path in paths and len(seqs := told.by_path.setdefault(path, [])) < _POINTERS:
            seqs.append(record.seq)


def what(record: Record) -> str:
    """The one thing that an event is about, as text."""
    if record.kind is Kind.FORK:
        return f"{'thread' if record.flags & Flag.THREAD else 'made pid'} {record.args[0]}"
    if record.kind is Kind.EXIT:
        if record.flags & Flag.THREAD:
            return "thread ended"
        return f"killed by {signal_name(record.args[1])}" if record.args[1] else f"exit {record.args[0]}"
    if record.kind is Kind.SOCKET and record.addr is None:
        return f"{FAMILIES.get(record.args[1], f'family {record.args[1]}')} socket"
    return subject(record) or f"arguments {record.args[1]:#x} {record.args[2]:#x}"


def more(record: Record) -> str:
    """What else is worth knowing of it; often nothing."""
    parts = []
    if record.kind is Kind.OPEN:
        parts += [name for bit, name in _OPEN_FLAGS if record.open_flags & bit == bit]
    asked = record.asked
    if asked is not None and asked not in (record.resolved, record.place) and record.kind is not Kind.EXEC:
        parts.append("as given: " + shown(asked, LIMIT))
    if record.kind is Kind.EXEC:
        if (path := record.resolved or asked) is not None:
            parts.append("file: " + shown(path, LIMIT))
        if record.interp is not None:
            parts.append("interpreter: " + shown(record.interp, LIMIT))
        if record.cwd is not None:
            parts.append("in " + shown(record.cwd, LIMIT))
    if record.flags:
        parts += [name.replace("_", "-") for name in flag_names(record.flags) if name not in ("thread", "later")]
    return ", ".join(parts)
