"""The gate's journal: one JSON line an event, each bound to the one before it by its digest.

``gate/events.jsonl`` is the one truth about what the gate did; HAR, flow files and replay are made from it. A line is
written whole with one ``write(2)`` before its decision takes effect, so a gate that is killed loses nothing that it had
decided. What came from a box is kept as it was: text where it is harmless text, else ``{"b64": …}``; beyond its bound
``{"b64": first bytes, "len": whole length, "sha256": of the whole}``. Fields that do not apply are left out.

=================  =====================================================================================================
seq, prev_sha256   place in the journal; SHA-256 of the line before (without its line end), 64 zeros for the first
t_mono, t_wall     CLOCK_BOOTTIME in nanoseconds, as the witness counts; seconds since 1970
run, box, conn     whose; conn counts the box's connections from 1
kind               see `Kind`
src_port, pid_hint the connection's port in the box; a pid where the witness knew one (a hint, never policy)
orig_dst           ``[address, port]`` the box wanted
name_dns, …        the names the box gave, raw: DNS, CONNECT, SNI, Host or :authority
verdict, rule      ``allow``, ``deny``, or ``report`` (would be denied); the rule's id
reason_code        a stable code, present on every denial and failure
of                 on ``http-done``, ``ws`` and ``ws-done``: seq of the ``http`` event that was decided
method, url        as the box sent them; ``target`` is what was decided on: ``{"scheme", "host", "port", "path"}``
req, resp          head as ``{"version", "headers": [[name, value], …]}``; ``resp`` also ``status`` and ``reason``
hosted_tools       on ``http-done``: tools that a model's provider runs, found in the bodies (`hosted.HostedTool`)
req_sha256, …      digest and length of each body as it passed; ``resp_received_*`` where the gate changed the answer
=================  =====================================================================================================
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

Kind = Literal[
    "dns",
    "connect",
    "tls",
    "http",  # decided: one for each request
    "http-done",  # an allowed request came to its end
    "ws",  # one websocket message
    "ws-done",
    "tcp",
    "udp",
    "icmp",
    "packet",
    "gate",  # about the gate itself: opened, closed, failed
]
KINDS: Final = frozenset(get_args(Kind))
Verdict = Literal["allow", "deny", "report"]

FIRST: Final = "0" * 64
MAX_TEXT: Final = 2048
"""Bound of one string from a box, in bytes."""
MAX_LIST: Final = 256
"""Bound of one list, such as the headers of a message."""
MAX_JOURNAL: Final = 1 << 30
"""Bytes of one box's events: some 700 000 requests."""
MAX_LINE: Final = 1 << 20
"""A reader takes no longer line."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=True, allow_nan=False)
_HARMLESS = re.compile("[\x20-\x7e\u00a1-\u024f]*")
"""Text that reads the same to a person, a terminal and a JSON parser. Everything else is base64."""


class Wide(bytes):
    """A string with a wider bound: targets and header values, which replay needs whole."""


class Ready(dict[str, Any]):
    """A part of an event that is plain JSON already."""


MAX_WIDE: Final = 40_000


class JournalFull(OSError):
    """The box has made as many events as are kept."""


class JournalDamaged(Exception):
    """The journal was changed, or its end is missing. ``line`` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.problem = line, problem


def bounded(value: bytes | str, limit: int = MAX_TEXT) -> Any:
    """A string from a box, safe for JSON: text, or base64 where it is not harmless text, cut at ``limit`` bytes."""
    return _known(value) if len(value) < 200 else _bounded(value, limit)


@lru_cache(maxsize=4096)
def _known(value: bytes | str) -> Any:
    return _bounded(value, MAX_TEXT)


def _bounded(value: bytes | str, limit: int) -> Any:
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if len(raw) > limit:
        return {"b64": _b64(raw[:limit]), "len": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": _b64(raw)}
    return text if _HARMLESS.fullmatch(text) else {"b64": _b64(raw)}


def raw(value: Any) -> bytes:
    """The bytes behind what `bounded` made; of a cut string what was kept."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        return base64.b64decode(value["b64"])
    raise ValueError(f"not a string of the journal: {value!r}")


def is_cut(value: Any) -> bool:
    """Whether `bounded` had to leave bytes out."""
    return isinstance(value, dict) and "len" in value


class Journal:
    """Appends events. Safe from any thread; keeps nothing in memory but the last digest."""

    def __init__(self, path: Path, *, run: str, box: str, policy_sha256: str, limit: int = MAX_JOURNAL) -> None:
        """A new file at ``path``; FileExistsError when there is one. ``limit`` is of its size in bytes."""
        self.path = path
        self._common = {"run": run, "box": box, "policy_sha256": policy_sha256}
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._last = FIRST
        self._seq = self._size = 0
        self._limit, self._full = limit, False

    def append(self, kind: Kind, /, **fields: Any) -> int:
        """Write one event and return its seq. Fields that are None are left out; bytes are made harmless.

        Known names are in the module's table; others may be added. A closed journal raises ValueError: whoever
        decides after the end must not act on it. So does a full one, with JournalFull: a box that makes more events
        than there is room for has no way out any more.
        """
        event: dict[str, Any] = {name: _plain(value) for name, value in fields.items() if value is not None}
        with self._lock:
            if self._fd < 0:
                raise ValueError("the journal is closed")
            if self._size >= self._limit and kind != "gate":
                if not self._full:
                    self._full = True
                    self._put("gate", {"what": "the journal is full"})
                raise JournalFull(f"more than {self._limit} bytes of events")
            return self._put(kind, event)

    def _put(self, kind: Kind, event: dict[str, Any]) -> int:
        seq = self._seq + 1
        event.update(
            self._common,
            kind=kind,
            seq=seq,
            prev_sha256=self._last,
            t_mono=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            t_wall=round(time.time(), 6),
        )
        line = _encode(event)
        try:
            _write(self._fd, line + b"\n")
        except OSError:  # a full disk took a part of it, after which no line could be read any more
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._last = hashlib.sha256(line).hexdigest()
        self._size += len(line) + 1
        self._seq = seq
        return seq

    def head(self) -> tuple[int, str]:
        """Seq and digest of the last event: what pins the whole journal."""
        with self._lock:
            return self._seq, self._last

    def close(self) -> None:
        """Make it durable. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.fsync(self._fd)
                os.close(self._fd)
                self._fd = -1


def read(path: Path, *, torn_end: bool = False) -> Iterator[dict[str, Any]]:
    """The events, each checked against the one before it. JournalDamaged names the first line that does not fit.

    With ``torn_end`` a last line without its line end, as a power cut leaves it, ends the journal quietly.
    """
    last = FIRST
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                if torn_end and not file.read(1):
                    return
                raise JournalDamaged(number, "the line has no end")
            line = line[:-1]
            event = _decode(line, number)
            if event.get("seq") != number:
                raise JournalDamaged(number, f"seq is {event.get('seq')!r}, not {number}")
            if event.get("prev_sha256") != last:
                raise JournalDamaged(number, "prev_sha256 is not the digest of the line before")
            last = hashlib.sha256(line).hexdigest()
            yield event


def _decode(line: bytes, number: int) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        raise JournalDamaged(number, "not JSON") from None
    if not isinstance(event, dict) or event.get("kind") not in KINDS:
        raise JournalDamaged(number, "not an event")
    if _encode(event) != line:
        raise JournalDamaged(number, "not in canonical form")
    return event


def _encode(event: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(event).encode()


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is bytes:
        return bounded(value)
    if kind is int or kind is bool or kind is float or kind is Ready or value is None:
        return value
    if kind is Wide:
        return bounded(value, MAX_WIDE)
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        plain = [_plain(inner) for inner in value[:MAX_LIST]]
        return plain if len(value) <= MAX_LIST else [*plain, {"left_out": len(value) - MAX_LIST}]
    if isinstance(value, Mapping):
        return _plain(dict(value))
    return bounded(value) if isinstance(value, str | bytes) else value


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
