"""Events of a record as lines for a terminal, one at a time. Every string of a box is escaped and cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.activity import address
from caisson_runner.bundle.places import target, writes
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.text import FAMILIES, command_line, errno_name, flag_names, shown, signal_name
from caisson_runner.report.text import printable

LIMIT: Final = 400
"""Bytes of one string in a line; `bundle export` has it whole."""

HEADER: Final = f"{'seq':>8}  {'seconds':>10}  {'pid':>8}  {'event':<14} {'errno':<11} what"


def label(record: Record) -> str:
    """One or two words: ``open``, ``write`` (opened for writing), ``change rename``."""
    if record.kind is Kind.OPEN:
        return "write" if writes(record) else "open"
    op = op_name(record)
    return record.kind.name.lower() + (f" {op}" if op else "")


def subject(record: Record) -> str:
    """The one thing that an event is about; nothing where it is told by numbers (forks, exits, sockets only made)."""
    if record.kind is Kind.EXEC:
        return command_line(record.argv or (record.asked or b"?",), LIMIT)
    if record.kind is Kind.OPEN:
        return shown(target(record) or record.asked or b"?", LIMIT)
    if record.kind is Kind.CONNECT:
        return shown(address(record.args[0], record.args[1], record.addr), LIMIT)
    if record.kind is Kind.SOCKET and record.addr is not None:
        return shown(address(record.args[1], record.args[2], record.addr), LIMIT)
    places = [place for place in (record.place or record.asked, record.new_place or record.name) if place]
    return " → ".join(shown(place, LIMIT) for place in places)


def what(record: Record) -> str:
    """A line's last column."""
    if record.kind is Kind.FORK:
        return f"{'thread' if record.flags & Flag.THREAD else 'pid'} {record.args[0]}"
    if record.kind is Kind.EXIT:
        if record.flags & Flag.THREAD:
            return "of a thread"
        return f"killed by {signal_name(record.args[1])}" if record.args[1] else f"code {record.args[0]}"
    if record.kind is Kind.SOCKET and record.addr is None:
        return FAMILIES.get(record.args[1], f"family {record.args[1]}")
    return subject(record)


def line(record: Record, first_ns: int, harness: bool) -> str:
    """One event; its time is in seconds from ``first_ns``."""
    marks = [*flag_names(record.flags & ~Flag.THREAD), *(["harness"] if harness else [])]
    end = f"  [{' '.join(marks)}]" if marks else ""
    error = errno_name(record.error) or ""
    text = (
        f"{record.seq:>8}  {(record.time_ns - first_ns) / 1e9:>10.6f}  {record.pid:>8}  {label(record):<14} "
        f"{error:<11} {what(record)}{end}"
    )
    return printable(text.rstrip(), 4 * LIMIT)


def lines(events: Iterable[tuple[Record, bool]], first_ns: int) -> Iterator[str]:
    """A header, then a line for each event and whether the harness did it."""
    yield HEADER
    for record, harness in events:
        yield line(record, first_ns, harness)
