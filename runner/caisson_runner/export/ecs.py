"""Elastic Common Schema 8.17 documents, one a line.

Source of fields and of the values `event.category`, `event.type` and `event.outcome` may have: elastic/ecs
(Apache-2.0), ``schemas/``. What ECS has no field for is below ``caisson``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from caisson_proto.record import ChangeOp, Flag, Kind, Record, SocketOp

from caisson_runner.bundle.canonical import dump_line
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.scene import Actor, Actors, Scene
from caisson_runner.export.text import (
    Address,
    command_line,
    errno_name,
    flag_names,
    maybe,
    shown,
    signal_name,
    socket_of,
    stamp,
    transport,
)

VERSION: Final = "8.17.0"
_CREATED: Final = (
    ChangeOp.LINK, ChangeOp.SYMLINK, ChangeOp.MKDIR, ChangeOp.MKNOD, ChangeOp.MEMFD,
)  # fmt: skip
_DELETED: Final = (ChangeOp.UNLINK, ChangeOp.RMDIR)
_KINDS: Final[Mapping[Kind, tuple[list[str], list[str]]]] = {
    Kind.FORK: (["process"], ["start"]),
    Kind.EXEC: (["process"], ["start"]),
    Kind.EXIT: (["process"], ["end"]),
    Kind.OPEN: (["file"], ["access"]),
    Kind.LOOK: (["file"], ["access"]),
    Kind.CONNECT: (["network"], ["connection", "start"]),
    Kind.SOCKET: (["network"], ["connection"]),
    Kind.PASS: (["process"], ["change"]),
    Kind.CROSS: (["process"], ["change"]),
}
MAX_ARGS: Final = 256


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """The documents."""
    actors = Actors(scene.harness())
    for record in records:
        actor = actors.before(record)
        value = document(scene, record, actor)
        made = actors.after(record)
        if made is not None:
            value["process"] |= _process(scene, made)
        yield dump_line(value)


def document(scene: Scene, record: Record, actor: Actor) -> dict[str, Any]:
    """One event; of a fork or an exec that succeeded ``process`` is still the one it happened in."""
    value: dict[str, Any] = {
        "@timestamp": stamp(scene.wall_ns(record.time_ns)),
        "ecs": {"version": VERSION},
        "event": _event(scene, record),
        "host": {"name": scene.box, "os": {"type": "linux"}},
        "process": _process(scene, actor) | {"thread": {"id": record.tid}},
        "user": {"id": str(record.uid)},
        "group": {"id": str(record.gid)},
        "caisson": {
            "run": scene.name,
            "task": scene.task,
            "agent": scene.agent,
            "kind": record.kind.name.lower(),
            "op": op_name(record),
            "harness": actor.harness,
            "time_ns": str(record.time_ns),
            "flags": flag_names(record.flags),
            "args": [str(one) for one in record.args],
        },
    }
    if (name := errno_name(record.error)) is not None:
        value["error"] = {"code": name}
    if record.kind is Kind.EXIT:
        value["process"]["exit_code"] = record.args[0]
        value["process"]["end"] = value["@timestamp"]
        value["caisson"]["signal"] = signal_name(record.args[1])
    elif record.kind is Kind.EXEC and record.error:
        value["caisson"]["refused"] = {"path": maybe(record.asked), "command_line": command_line(record.argv or ())}
    elif record.kind in (Kind.OPEN, Kind.CHANGE, Kind.LOOK, Kind.PASS):
        if file := _file(record):
            value["file"] = file
    elif record.kind in (Kind.CONNECT, Kind.SOCKET):
        value |= _network(record)
    return value


def _event(scene: Scene, record: Record) -> dict[str, Any]:
    category, types = _KINDS.get(record.kind) or (["file"], [_change(record.args[0])])
    if record.flags & Flag.PENDING or (record.kind is Kind.CONNECT and errno_name(record.error) == "EINPROGRESS"):
        outcome = "unknown"
    else:
        outcome = "failure" if record.error else "success"
    word = op_name(record)
    return {
        "kind": "event",
        "category": category,
        "type": types,
        "action": f"{record.kind.name.lower()}-{word}" if word else record.kind.name.lower(),
        "outcome": outcome,
        "sequence": record.seq,
        "id": f"{scene.name}:{record.seq}",
        "module": "caisson",
        "dataset": "caisson.witness",
        "provider": str(scene.coverage.get("witness") or "none"),
    }


def _change(op: int) -> str:
    return "creation" if op in _CREATED else "deletion" if op in _DELETED else "change"


def _process(scene: Scene, actor: Actor) -> dict[str, Any]:
    value: dict[str, Any] = {
        "pid": actor.pid,
        "entity_id": f"{scene.name}:{actor.pid}:{actor.start_ns}",
        "name": actor.name,
        "start": stamp(scene.wall_ns(actor.start_ns)),
        "parent": {"pid": actor.ppid, "entity_id": f"{scene.name}:{actor.ppid}:{actor.parent_start_ns}"},
    }
    if actor.program is not None:
        value["executable"] = shown(actor.program)
    if actor.argv:
        value["args"] = [shown(one, 1024) for one in actor.argv[:MAX_ARGS]]
        value["args_count"] = len(actor.argv)
        value["command_line"] = command_line(actor.argv)
    if actor.cwd is not None:
        value["working_directory"] = shown(actor.cwd)
    return value


def _file(record: Record) -> dict[str, Any]:
    path = record.place if record.place is not None else record.asked
    if path is None:
        return {}
    folder, _slash, name = path.rpartition(b"/")
    value: dict[str, Any] = {"path": shown(path), "name": shown(name, 255)}
    if path.startswith(b"/"):
        value["directory"] = shown(folder or b"/")
    if record.kind is Kind.OPEN and record.args[4]:
        value["inode"] = str(record.args[4])
    if (new := record.new_place) is not None:
        value["target_path"] = shown(new)
    return value


def _network(record: Record) -> dict[str, Any]:
    family, kind, protocol = socket_of(record)
    number, name = transport(family, kind, protocol)
    network: dict[str, Any] = {}
    if family in (2, 10):
        network["type"] = "ipv4" if family == 2 else "ipv6"
    if number is not None:
        network["iana_number"] = str(number)
    if name is not None:
        network["transport"] = name
    inward = record.kind is Kind.SOCKET and record.args[0] in (SocketOp.ACCEPT, SocketOp.BIND, SocketOp.LISTEN)
    network["direction"] = "inbound" if inward else "outbound"
    value: dict[str, Any] = {"network": network}
    address = Address(record.addr)
    place: dict[str, Any] = {}
    if address.ip is not None:
        place = {"ip": address.ip, "address": address.ip, "port": address.port}
    elif address.name:
        place = {"address": address.name}
    if place:
        value["source" if inward else "destination"] = place
    return value
