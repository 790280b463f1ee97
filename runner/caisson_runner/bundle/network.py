"""What went out of the box and what was refused, from the gate's record. Every string of a box is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_runner.report.text import printable

EVENTS: Final = "gate/events.jsonl"
PIDS: Final = "gate/pids.jsonl"
_MANY: Final = 10_000
_ASKED: Final = ("dns", "http", "ws", "tls", "tcp", "udp", "icmp", "packet")


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a gate's journal, unchecked; none where there is no file; a last one that was torn is left out."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                return  # a killed gate left it unfinished
            if isinstance(event, dict):
                yield event


@dataclass(slots=True)
class Asked:
    """One thing that was asked of the gate, however often."""

    kind: str
    what: str
    verdict: str
    reason: str
    count: int = 0
    received: int = 0
    """Bytes of answers."""
    statuses: set[int] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "kind": self.kind,
            "what": self.what,
            "verdict": self.verdict,
            "reason": self.reason,
            "count": self.count,
            "received": self.received,
            "statuses": sorted(self.statuses),
            "pids": sorted(self.pids),
        }


def asked_of(root: Path) -> list[Asked]:
    """Of a bundle's folder; empty where its box had no gate. In the order in which things were first asked."""
    if not (root / EVENTS).is_file():
        return []
    pids = {
        one["seq"]: one["pid"]
        for one in events(root / PIDS)
        if isinstance(one.get("seq"), int) and isinstance(one.get("pid"), int)
    }
    found: dict[tuple[str, str, str, str], Asked] = {}
    by_seq: dict[int, Asked] = {}
    for event in events(root / EVENTS):
        kind, seq, of, size = (event.get(name) for name in ("kind", "seq", "of", "resp_len"))
        if kind == "http-done" and isinstance(of, int) and of in by_seq:
            one = by_seq.pop(of)
            one.received += size if isinstance(size, int) else 0
            one.statuses |= {event["status"]} if isinstance(event.get("status"), int) else set()
            continue
        if kind not in _ASKED or "verdict" not in event or ("upstream_ip" in event and kind == "tcp"):
            continue  # the end of an opaque connection is told with its begin
        key = (kind, _what(event), str(event["verdict"]), str(event.get("reason_code") or ""))
        if key not in found and len(found) >= _MANY:
            continue
        one = found.setdefault(key, Asked(*key))
        one.count += 1
        if isinstance(seq, int) and seq in pids:
            one.pids.add(pids[seq])
        if kind == "http" and one.verdict != "deny" and isinstance(seq, int):
            by_seq[seq] = one
    return list(found.values())


def lines_of(asked: list[Asked], names: Mapping[int, str]) -> Iterator[str]:
    """For a person: what was refused is marked. A name that was found is not told, what was done with it is."""
    for one in asked:
        if one.kind == "dns" and one.verdict == "allow":
            continue
        mark = "refused  " if one.verdict == "deny" else "reported " if one.verdict == "report" else ""
        times = f" ×{one.count}" if one.count > 1 else ""
        end = f"  {one.reason}" if one.reason else ""
        if one.statuses:
            end += "  " + " ".join(map(str, sorted(one.statuses))) + f", {one.received} bytes"
        who = ", ".join(f"{pid} {names[pid]}" if pid in names else str(pid) for pid in sorted(one.pids)[:3])
        yield printable(f"{mark}{one.what}{times}{end}" + (f"  by pid {who}" if who else ""), 200)


def _what(event: Mapping[str, Any]) -> str:
    kind = event["kind"]
    if kind in ("http", "ws") and "url" in event:
        return f"{_text(event.get('method')) or kind} {_text(event['url'])}"
    if kind == "dns":
        return f"DNS {_text(event.get('name_dns')) or 'a malformed question'} {event.get('qtype') or ''}".strip()
    target = event.get("orig_dst")
    target = target if isinstance(target, list) and target else [""]
    place = f"{_text(target[0])}:{target[1]}" if len(target) > 1 else _text(target[0])
    name = _text(event.get("name_sni") or event.get("name_dns"))
    label = event.get("label") or event.get("protocol") or kind
    return f"{_text(label)} {place}" + (f" ({name})" if name else "") + (" unread" if event.get("opaque") else "")


def _text(value: Any) -> str:
    """A string of the journal, for display."""
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        try:
            return base64.b64decode(value["b64"]).decode("utf-8", "backslashreplace")
        except ValueError:
            return "?"
    return value if isinstance(value, str) else "" if value is None else str(value)
