"""JSON lines of the shape Tetragon exports (its gRPC messages with the names of the protobuf fields).

Source: cilium/tetragon (Apache-2.0), ``api/v1/tetragon/{events,tetragon}.proto``: `GetEventsResponse`. Execs and exits
are Tetragon's own messages; everything else is a `process_tracepoint` of the subsystem ``caisson``, since it was not
Tetragon's hooks that saw it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.canonical import dump_line
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.scene import Actor, Actors, Scene
from caisson_runner.export.text import (
    FAMILIES,
    Address,
    command_line,
    errno_name,
    maybe,
    shown,
    signal_name,
    socket_of,
    stamp,
    transport,
)

_INT32 = 1 << 31


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """The events. Forks and threads are in none of them: Tetragon has no event for these."""
    actors = Actors()
    for record in records:
        actor = actors.before(record)
        parent = actor.parent
        if record.kind is Kind.EXIT and not record.flags & Flag.THREAD:
            body: dict[str, Any] = {"process_exit": _with(scene, actor, parent) | _end(record)}
        elif record.kind is Kind.EXEC and not record.error:
            made = actors.after(record) or actor
            body = {"process_exec": _with(scene, made, parent)}
        elif record.kind in (Kind.FORK, Kind.EXIT):
            actors.after(record)
            continue
        else:
            body = {"process_tracepoint": _with(scene, actor, parent) | _seen(record)}
        if record.kind is not Kind.EXEC:
            actors.after(record)
        yield dump_line(body | {"node_name": scene.box, "time": stamp(scene.wall_ns(record.time_ns))})


def _with(scene: Scene, actor: Actor, parent: Actor | None) -> dict[str, Any]:
    value = {"process": _process(scene, actor)}
    if parent is not None:
        value["parent"] = _process(scene, parent)
    return value


def _id(scene: Scene, pid: int, start_ns: int) -> str:
    return base64.b64encode(f"{scene.box}:{start_ns}:{pid}".encode()).decode("ascii")


def _process(scene: Scene, actor: Actor) -> dict[str, Any]:
    return {
        "exec_id": _id(scene, actor.pid, actor.start_ns),
        "parent_exec_id": _id(scene, actor.ppid, actor.parent_start_ns),
        "pid": actor.pid,
        "uid": actor.uid,
        "cwd": shown(actor.cwd or b""),
        "binary": shown(actor.program if actor.program is not None else actor.comm),
        "arguments": command_line(actor.argv[1:]),
        "flags": "execve" if actor.argv else "procFS",
        "start_time": stamp(scene.wall_ns(actor.start_ns)),
    }


def _end(record: Record) -> dict[str, Any]:
    value: dict[str, Any] = {"status": record.args[0] & 0xFFFF_FFFF}
    if (name := signal_name(record.args[1])) is not None:
        value["signal"] = name
    return value


def _seen(record: Record) -> dict[str, Any]:
    word = op_name(record)
    arguments: list[dict[str, Any]] = []
    for path in (record.place or record.asked, record.new_place, record.name):
        if path is not None:
            arguments.append({"string_arg": shown(path)})
    if record.kind is Kind.EXEC:
        arguments = [{"string_arg": maybe(record.asked) or ""}, {"string_arg": command_line(record.argv or ())}]
    if record.kind is Kind.OPEN:
        arguments.append({"int_arg": record.open_flags % _INT32})
    if record.kind in (Kind.CONNECT, Kind.SOCKET):
        arguments.append({"sock_arg": _sock(record)})
    arguments.append({"string_arg": errno_name(record.error) or "0"})
    name = record.kind.name.lower()
    return {"subsys": "caisson", "event": f"{name}_{word}" if word else name, "args": arguments}


def _sock(record: Record) -> dict[str, Any]:
    family, kind, protocol = socket_of(record)
    _number, name = transport(family, kind, protocol)
    address = Address(record.addr)
    value: dict[str, Any] = {"family": f"AF_{FAMILIES.get(family, str(family)).upper()}"}
    if name is not None:
        value["protocol"] = f"IPPROTO_{name.upper().replace('-', '')}"
    if address.known:
        value["daddr"] = address.ip if address.ip is not None else address.name
    if address.port is not None:
        value["dport"] = address.port
    return value
