"""What a route says it did: one JSON line a deed, bytes as hex, on its stdout. The ground truth, by construction.

    {"event": "open", "op": "openat2", "pid": 3, "path": "2f64…", "object": "2f64…", "dev": 5, "ino": 9, "errno": 0}
    {"end": "inapplicable", "reason": "io_uring_setup: ENOSYS"}

A route that reaches its end writes nothing more; one that could not act ends with ``inapplicable`` (the kernel,
architecture or privilege is absent) or ``not-performed`` (it should have worked).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from caisson_runner.compare.errors import RoutesInvalid

EVENTS: Final = (
    "fork", "exec", "exit", "open", "change", "look", "io", "connect", "socket", "pass", "cross",
)  # fmt: skip
"""Classes of events, in the order of the tables."""

MAX_LINE: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that was done. ``pid`` and ``child`` are numbers inside the box."""

    event: str
    op: str = ""
    """The system call, or what stands for it."""
    pid: int = 0
    path: bytes | None = None
    """As given."""
    path2: bytes | None = None
    object: bytes | None = None
    """Absolute path, in the box, of what the kernel used."""
    dev: int = 0
    ino: int = 0
    errno: int = 0
    argv: tuple[bytes, ...] | None = None
    """As passed."""
    argv2: tuple[bytes, ...] | None = None
    """As the kernel made it (a script's interpreter in front, one empty argument for none)."""
    interp: bytes | None = None
    child: int = 0
    mark: bytes | None = None
    """A path only the child opened: tells its processes in a record of host pids."""
    status: int = 0
    addr: bytes | None = None
    family: int = 0
    type: int = 0
    protocol: int = 0
    flags: int = 0
    final: int | None = None
    """Errno with which a non-blocking connect ended."""
    lie: tuple[bytes, ...] = ()
    """Names or arguments that are not true: a witness that tells them as they are is wrong."""
    count: int = 1
    objects: tuple[tuple[bytes, int], ...] = ()
    """Of many opens of one name: how often each object was opened."""


@dataclass(frozen=True, slots=True)
class Log:
    """A route's whole log. ``end`` is ``performed``, ``inapplicable`` or ``not-performed``."""

    deeds: tuple[Deed, ...]
    end: str
    reason: str = ""


_BYTES: Final = frozenset({"path", "path2", "object", "interp", "mark", "addr"})
_NAMES: Final = frozenset(field.name for field in fields(Deed))


def read_log(lines: Iterable[bytes]) -> Log:
    """The log of one run. RoutesInvalid for a line that is none of ours."""
    deeds: list[Deed] = []
    for line in lines:
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            if "end" in said:
                return Log(tuple(deeds), str(said["end"]), str(said.get("reason", ""))[:300])
            if "ask" not in said:
                deeds.append(read_deed(said))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise RoutesInvalid(f"a route wrote what is no deed: {line[:200]!r} ({problem})") from None
    return Log(tuple(deeds), "not-performed", "its log ends before its end")


def read_deed(said: dict[str, Any]) -> Deed:
    """One deed from its JSON. ValueError or KeyError for anything unknown."""
    values: dict[str, Any] = {}
    for key, value in said.items():
        if key not in _NAMES:
            raise KeyError(key)
        if value is None:
            continue
        if key in _BYTES:
            value = bytes.fromhex(value)
        elif key in ("argv", "argv2", "lie"):
            value = tuple(bytes.fromhex(word) for word in value)
        elif key == "objects":
            value = tuple((bytes.fromhex(path), int(count)) for path, count in value)
        values[key] = value
    if values["event"] not in EVENTS:
        raise ValueError(f"event {values['event']!r}")
    return Deed(**values)
