"""What the journal says about each request, put together, for whoever makes another format of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_gate.events import raw, read

Pairs = list[tuple[bytes, bytes]]
MAX_INLINE: Final = 1 << 20
"""Bodies up to this size stand in the exported files; larger ones are named by digest and stay in ``bodies/``."""


@dataclass(slots=True)
class Entry:
    """One request: its decision, its end (None when the gate did not live to see it), its websocket messages."""

    asked: dict[str, Any]
    done: dict[str, Any] | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def body(self, folder: Path, name: str) -> bytes | None:
        """``req`` or ``resp`` body; None when it is not kept, or too large to stand in another file."""
        done = self.done or {}
        if not done.get(f"{name}_kept") or done[f"{name}_len"] > MAX_INLINE:
            return None
        try:
            return Path(folder, "bodies", done[f"{name}_sha256"]).read_bytes()
        except OSError:
            return None

    @property
    def url(self) -> str:
        return raw(self.asked.get("url", "")).decode("utf-8", "replace")


def header(head: dict[str, Any] | None, name: bytes) -> str:
    """One header's first value, empty when there is none."""
    return next((value.decode("latin-1") for field, value in pairs(head) if field.lower() == name), "")


def pairs(head: dict[str, Any] | None) -> Pairs:
    """The headers of a head."""
    fields = head["headers"] if head else []
    return [(raw(pair[0]), raw(pair[1])) for pair in fields if isinstance(pair, list)]


def entries(folder: Path) -> Iterator[Entry]:
    """Each request of a ``gate/`` folder, as soon as it is over; what is still open comes last."""
    open_now: dict[int, Entry] = {}
    for event in read(folder / "events.jsonl", torn_end=True):
        kind, of = event["kind"], event.get("of")
        if kind == "http":
            entry = Entry(event)
            if event["verdict"] == "deny":
                yield entry
            else:
                open_now[event["seq"]] = entry
        elif of in open_now:
            entry = open_now[of]
            if kind == "http-done":
                entry.done = event
                if event.get("status") != 101:
                    yield open_now.pop(of)
            elif kind == "ws":
                entry.messages.append(event)
            elif kind == "ws-done":
                yield open_now.pop(of)
    yield from open_now.values()
