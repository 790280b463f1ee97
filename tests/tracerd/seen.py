"""What the tests saw of each kind of event in each tier; ``tests/vm/matrix.py`` makes a table of it."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from caisson_proto import record
from caisson_proto.record import Flag, Kind, Record


class Seen:
    """Names of events by tier, each with the tests that saw it. Written where ``CAISSON_SEEN`` says, if it says so."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def add(self, tier: str, records: Iterable[Record]) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "?").partition(" ")[0]
        for one in records:
            self._found[tier][name_of(one)].add(test)

    def write(self) -> None:
        target = os.environ.get("CAISSON_SEEN")
        if target:
            plain = {
                tier: {name: sorted(tests) for name, tests in sorted(found.items())}
                for tier, found in sorted(self._found.items())
            }
            Path(target).write_text(json.dumps(plain, indent=1) + "\n")


def name_of(one: Record) -> str:
    """Such as ``open``, ``open, io_uring``, ``exec, refused``, ``change, rename``."""
    words = [one.kind.name.lower()]
    operations = operations_of(one.kind)
    if operations is not None:
        try:
            words.append(operations(one.args[0]).name.lower())
        except ValueError:
            words.append(str(one.args[0]))
    if Flag.IO_URING in one.flags:
        words.append("io_uring")
    if one.kind == Kind.EXEC and one.error:
        words.append("refused")
    if Flag.LATER in one.flags:
        words.append("later")
    return ", ".join(words)


def operations_of(kind: Kind) -> type[IntEnum] | None:
    """What a record of this kind says was done, where the kind alone does not."""
    found = getattr(record, f"{kind.name.capitalize()}Op", None)
    known = kind > Kind.CONNECT and isinstance(found, type) and issubclass(found, IntEnum)
    return found if known else None


def declared() -> list[str]:
    """Every name that the layout of records allows, without how it came about."""
    names = []
    for kind in Kind:
        operations = operations_of(kind)
        if operations is None:
            names.append(kind.name.lower())
        else:
            names += [f"{kind.name.lower()}, {one.name.lower()}" for one in operations]
    return names
