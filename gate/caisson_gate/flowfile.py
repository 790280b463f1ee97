"""``flows.mitm``: the requests as mitmproxy's own tools read them, in the format of the installed version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mitmproxy import flow as mflow
from mitmproxy import http
from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.io import FlowWriter
from mitmproxy.websocket import WebSocketData, WebSocketMessage
from wsproto.frame_protocol import Opcode

from caisson_gate.events import raw
from caisson_gate.exported import Entry, entries, pairs


def write_flows(folder: Path) -> int:
    """Make ``flows.mitm`` of a ``gate/`` folder; how many flows it has."""
    target = folder / "flows.mitm"
    partial = target.with_suffix(".mitm.partial")
    count = 0
    with partial.open("wb") as file:
        writer = FlowWriter(file)  # type: ignore[no-untyped-call]
        for entry in entries(folder):
            if entry.asked.get("target") and entry.asked.get("req"):
                writer.add(make_flow(entry, folder))
                count += 1
    partial.rename(target)
    return count


def make_flow(entry: Entry, folder: Path) -> http.HTTPFlow:
    """One request as a flow."""
    asked, done = entry.asked, entry.done or {}
    target, began = asked["target"], asked["t_wall"]
    ended = began + (done["t_mono"] - asked["t_mono"]) / 1e9 if done else began
    secure = target["scheme"] == "https"
    client = Client(
        peername=(asked["box"], asked["src_port"]), sockname=tuple(asked["orig_dst"]), timestamp_start=began
    )
    server = Server(address=(target["host"], target["port"]))
    client.tls = server.tls = secure
    if done.get("upstream_ip"):
        server.peername = (done["upstream_ip"], target["port"])
    client.state = server.state = ConnectionState.CLOSED
    made = http.HTTPFlow(client, server)
    head = asked["req"]
    two = raw(head["version"]).startswith(b"HTTP/2")
    made.request = http.Request(
        host=target["host"],
        port=target["port"],
        method=raw(asked["method"]),
        scheme=target["scheme"].encode(),
        authority=raw(asked.get("name_host", "")) if two else b"",
        path=raw(target["path"]),
        http_version=raw(head["version"]),
        headers=http.Headers(pairs(head)),
        content=entry.body(folder, "req") if done.get("req_len") else b"",
        trailers=None,
        timestamp_start=began,
        timestamp_end=ended,
    )
    answer = done.get("resp")
    if answer is not None:
        made.response = http.Response(
            http_version=raw(answer["version"]),
            status_code=answer["status"],
            reason=raw(answer.get("reason", "")),
            headers=http.Headers(pairs(answer)),
            content=entry.body(folder, "resp") if done.get("resp_len") else b"",
            trailers=None,
            timestamp_start=ended,
            timestamp_end=ended,
        )
    problem = done.get("error") or done.get("reason_code") or (asked.get("reason_code") if not done else None)
    if problem:
        made.error = mflow.Error(str(problem), ended)
    made.comment = _comment(asked, done)
    if entry.messages:
        made.websocket = WebSocketData([_message(one, folder) for one in entry.messages])
    return made


def _comment(asked: dict[str, Any], done: dict[str, Any]) -> str:
    parts = [f"gate event {asked['seq']}", f"{asked['verdict']} by {asked['rule']}"]
    parts += [f"{name} body in bodies/{done[f'{name}_sha256']}" for name in ("req", "resp") if done.get(f"{name}_kept")]
    return "; ".join(parts)


def _message(event: dict[str, Any], folder: Path) -> WebSocketMessage:
    held = Entry({}, {f"resp_{name}": event.get(f"body_{name}") for name in ("sha256", "len", "kept")})
    kind = Opcode.TEXT if event["opcode"] == "text" else Opcode.BINARY
    return WebSocketMessage(kind, event["from_box"], held.body(folder, "resp") or b"", event["t_wall"])
