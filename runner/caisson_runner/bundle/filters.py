"""Which events of a record are wanted: a filter that looks at one event at a time. Pure."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from caisson_proto.record import Kind, Record

from caisson_runner.errors import CaissonError


class BadFilter(CaissonError):
    """A filter that means nothing."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Filter:
    """What an event must be. Several values of one kind: any of them. Several kinds: all of them.

    ``paths`` are shell patterns over whole paths, in which ``*`` goes over slashes. ``harness``: True for what the
    naive harness's own check did in the box, False for what the agent did, None for both.
    """

    kinds: frozenset[Kind] = frozenset()
    paths: tuple[bytes, ...] = ()
    errors: frozenset[int] = frozenset()
    failed: bool = False
    harness: bool | None = None

    def wants(self, record: Record, harness: bool = False) -> bool:
        """``harness``: whether it was a process of the harness's check."""
        if self.kinds and record.kind not in self.kinds:
            return False
        if self.failed and not record.error:
            return False
        if self.errors and record.error not in self.errors:
            return False
        if self.harness is not None and harness is not self.harness:
            return False
        return not self.paths or any(
            fnmatch.fnmatchcase(path, glob) for path in paths_of(record) for glob in self.paths
        )


def paths_of(record: Record) -> tuple[bytes, ...]:
    """Every path an event is about: as it was asked for, and where that led, of both its ends; the name of a socket."""
    found = [record.asked, record.place, record.resolved, record.new, record.new_exit, record.new_place, record.interp]
    if record.addr is not None and record.addr[:2] == b"\1\0":
        found.append(record.addr[2:].rstrip(b"\0"))
    return tuple(dict.fromkeys(path for path in found if path))


def filter_of(
    kinds: Sequence[str] = (),
    paths: Sequence[str] = (),
    errors: Sequence[str] = (),
    failed: bool = False,
    harness: bool | None = None,
) -> Filter:
    """From words a person writes. Raises BadFilter for an errno that there is not."""
    return Filter(
        frozenset(Kind[kind.upper()] for kind in kinds),
        tuple(os.fsencode(path) for path in paths),
        frozenset(_errno(text) for text in errors),
        failed,
        harness,
    )


def _errno(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else getattr(errno, text.upper(), None)
    if not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise BadFilter(f"there is no errno {text}: write a name as ENOENT, or its number")
    return number


def moment(text: str, first_ns: int) -> int:
    """CLOCK_BOOTTIME in ns from ``12345`` (the same) or ``+0.5`` (seconds after the first event of the record)."""
    try:
        if text.startswith("+"):
            return first_ns + int(float(text[1:]) * 1e9)
        number = int(text)
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise BadFilter(f"{text} is no time: write ns of the boot clock, or +SECONDS after the first event")
    return number
