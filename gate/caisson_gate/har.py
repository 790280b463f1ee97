"""``flows.har``: the requests in the form browsers' tools read (HAR 1.2), written one entry at a time."""

from __future__ import annotations

import base64
import datetime
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from caisson_gate.events import raw
from caisson_gate.exported import Entry, entries, header, pairs


def write_har(folder: Path) -> int:
    """Make ``flows.har`` of a ``gate/`` folder; how many entries it has."""
    target = folder / "flows.har"
    partial = target.with_suffix(".har.partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        file.write('{"log":{"version":"1.2","creator":{"name":"Caisson gate","version":"1"},"entries":[')
        for entry in entries(folder):
            file.write(",\n" if count else "\n")
            json.dump(har_entry(entry, folder), file, separators=(",", ":"))
            count += 1
        file.write("\n]}}\n")
    partial.rename(target)
    return count


def har_entry(entry: Entry, folder: Path) -> dict[str, Any]:
    """One request as HAR has it. What HAR has no place for is under ``_caisson``."""
    asked, done = entry.asked, entry.done or {}
    took = (done["t_mono"] - asked["t_mono"]) / 1e6 if done else 0.0
    began = datetime.datetime.fromtimestamp(asked["t_wall"], datetime.UTC)
    told = {name: done.get(name, asked.get(name)) for name in ("verdict", "rule", "reason_code", "error", "replayed")}
    made: dict[str, Any] = {
        "startedDateTime": began.isoformat(timespec="milliseconds"),
        "time": took,
        "request": _request(entry, folder),
        "response": _response(entry, folder),
        "cache": {},
        "timings": {"send": 0, "wait": took, "receive": 0},
        "connection": str(asked["conn"]),
        "_caisson": {"seq": asked["seq"], **{name: value for name, value in told.items() if value is not None}},
    }
    if done.get("upstream_ip"):
        made["serverIPAddress"] = done["upstream_ip"]
    if entry.messages:
        made["_webSocketMessages"] = [_message(one, folder) for one in entry.messages]
    return made


def _request(entry: Entry, folder: Path) -> dict[str, Any]:
    asked, done = entry.asked, entry.done or {}
    head = asked.get("req")
    made: dict[str, Any] = {
        "method": raw(asked.get("method", "")).decode("latin-1"),
        "url": entry.url,
        "httpVersion": raw((head or {}).get("version", "")).decode("latin-1"),
        "cookies": [],
        "headers": _headers(head),
        "queryString": [
            {"name": name, "value": value}
            for name, value in parse_qsl(urlsplit(entry.url).query, keep_blank_values=True)
        ],
        "headersSize": -1,
        "bodySize": done.get("req_len", 0),
    }
    if done.get("req_len"):
        body = entry.body(folder, "req")
        made["postData"] = {"mimeType": header(head, b"content-type"), **_text(body, done["req_sha256"])}
    return made


def _response(entry: Entry, folder: Path) -> dict[str, Any]:
    done = entry.done or {}
    head = done.get("resp")
    content: dict[str, Any] = {"size": done.get("resp_len", 0), "mimeType": header(head, b"content-type")}
    if done.get("resp_len"):
        content |= _text(entry.body(folder, "resp"), done["resp_sha256"])
    return {
        "status": done.get("status", entry.asked.get("status", 0)) or 0,
        "statusText": raw(head.get("reason", "")).decode("latin-1") if head else "",
        "httpVersion": raw((head or {}).get("version", "")).decode("latin-1"),
        "cookies": [],
        "headers": _headers(head),
        "content": content,
        "redirectURL": header(head, b"location"),
        "headersSize": -1,
        "bodySize": done.get("resp_len", 0),
    }


def _headers(head: dict[str, Any] | None) -> list[dict[str, str]]:
    return [{"name": name.decode("latin-1"), "value": value.decode("latin-1")} for name, value in pairs(head)]


def _text(body: bytes | None, sha256: str) -> dict[str, Any]:
    named = {"_sha256": sha256}
    if body is None:
        return {"comment": f"not in this file; see bodies/{sha256}", **named}
    try:
        return {"text": body.decode("utf-8"), **named}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(body).decode(), "encoding": "base64", **named}


def _message(event: dict[str, Any], folder: Path) -> dict[str, Any]:
    """As Chromium writes websocket messages."""
    held = Entry({}, {f"resp_{name}": event.get(f"body_{name}") for name in ("sha256", "len", "kept")})
    body = held.body(folder, "resp") or b""
    text = event["opcode"] == "text"
    return {
        "type": "send" if event["from_box"] else "receive",
        "time": event["t_wall"],
        "opcode": 1 if text else 2,
        "data": body.decode("utf-8", "replace") if text else base64.b64encode(body).decode(),
    }
