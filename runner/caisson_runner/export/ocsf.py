"""OCSF 1.4 events, one a line: Process, File System, Kernel and Network Activity, and a Detection Finding for each
finding.

Source of classes, activities and required attributes: ocsf/ocsf-schema (Apache-2.0), ``events/`` and ``objects/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from caisson_proto.record import ChangeOp, Flag, Kind, LookOp, Record, SocketOp

from caisson_runner.bundle.canonical import dump_line
from caisson_runner.bundle.reader import numbers
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
    transport,
)

VERSION: Final = "1.4.0"
PROCESS, FILE, KERNEL, NETWORK, FINDING = 1007, 1001, 1003, 4001, 2004
_CATEGORY: Final = {PROCESS: 1, FILE: 1, KERNEL: 1, NETWORK: 4, FINDING: 2}
_OTHER: Final = 99
_LINUX: Final = {"name": "Linux", "type_id": 200}
_SEVERITIES: Final = {"info": 1, "warn": 3, "void": 5}

_CHANGES: Final[Mapping[int, int]] = {
    ChangeOp.RENAME: 5, ChangeOp.LINK: 1, ChangeOp.SYMLINK: 1, ChangeOp.UNLINK: 4, ChangeOp.RMDIR: 4, ChangeOp.MKDIR: 1,
    ChangeOp.MKNOD: 1, ChangeOp.TRUNCATE: 3, ChangeOp.CHMOD: 7, ChangeOp.CHOWN: 7, ChangeOp.UTIME: 6,
    ChangeOp.SETXATTR: 6, ChangeOp.REMOVEXATTR: 6, ChangeOp.SETATTR: 6, ChangeOp.MOUNT: 12, ChangeOp.UMOUNT: 13,
    ChangeOp.MOVE_MOUNT: 12, ChangeOp.MEMFD: 1,
}  # fmt: skip
_LOOKS: Final[Mapping[int, int]] = {
    LookOp.STAT: 8, LookOp.ACCESS: 8, LookOp.STATFS: 8, LookOp.GETXATTR: 8, LookOp.READLINK: 2, LookOp.GETDENTS: 2,
}  # fmt: skip
_SOCKETS: Final[Mapping[int, int]] = {SocketOp.ACCEPT: 1, SocketOp.SEND: 6, SocketOp.LISTEN: 7, SocketOp.FASTOPEN: 1}
_OPEN: Final = 14


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """The events, then the findings."""
    actors = Actors(scene.harness())
    last = 0
    for record in records:
        actor = actors.before(record)
        value = event(scene, record, actor)
        made = actors.after(record)
        if made is not None:
            value["process"] = _process(made)
        last = record.time_ns
        yield dump_line(value)
    for finding in scene.findings:
        yield dump_line(detection(scene, finding, last))


def event(scene: Scene, record: Record, actor: Actor) -> dict[str, Any]:
    """One event; of a fork or an exec that succeeded ``process`` is still the one it happened in."""
    if record.kind in (Kind.FORK, Kind.EXEC):
        value = _base(scene, record, PROCESS, 1)
        value["process"] = _process(actor)
        if record.kind is Kind.EXEC and record.error:
            value["process"] = {
                "cmd_line": command_line(record.argv or ()),
                "name": _leaf(record.asked),
                "path": maybe(record.asked),
                "pid": record.pid,
            }
    elif record.kind is Kind.EXIT:
        value = _base(scene, record, PROCESS, 2)
        value["process"] = _process(actor)
        value["exit_code"] = record.args[0]
        value["unmapped"]["signal"] = signal_name(record.args[1])
    elif record.kind in (Kind.CONNECT, Kind.SOCKET):
        value = _network(scene, record)
    elif record.kind in (Kind.OPEN, Kind.CHANGE, Kind.LOOK):
        value = _file(scene, record)
    else:
        value = _base(scene, record, KERNEL, 4)
        value["kernel"] = {"name": f"{record.kind.name.lower()} {op_name(record)}", "type_id": 2}
        if record.asked is not None:
            value["kernel"]["path"] = shown(record.asked)
    value["actor"] = {"process": _process(actor), "user": {"uid": str(record.uid)}}
    value["unmapped"]["harness"] = actor.harness
    return value


def _base(scene: Scene, record: Record, class_uid: int, activity: int) -> dict[str, Any]:
    value: dict[str, Any] = {
        "activity_id": activity,
        "category_uid": _CATEGORY[class_uid],
        "class_uid": class_uid,
        "type_uid": class_uid * 100 + activity,
        "severity_id": 1,
        "time": scene.wall_ns(record.time_ns) // 1_000_000,
        "status_id": 2 if record.error else 1,
        "metadata": _metadata(scene, record.seq),
        "device": {"hostname": scene.box, "type_id": 99, "type": "Box", "os": dict(_LINUX)},
        "unmapped": {
            "kind": record.kind.name.lower(),
            "op": op_name(record),
            "time_ns": record.time_ns,
            "tid": record.tid,
            "flags": flag_names(record.flags),
            "args": [str(one) for one in record.args],
        },
    }
    if record.error:
        value |= {"status_code": str(record.error), "status_detail": errno_name(record.error)}
    if activity == _OTHER:
        value["activity_name"] = op_name(record) or record.kind.name.lower()
    return value


def _metadata(scene: Scene, seq: int | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "version": VERSION,
        "product": {"name": "Caisson", "vendor_name": "Caisson"},
        "profiles": ["host"],
        "correlation_uid": scene.name,
        "log_name": "witness",
        "log_provider": str(scene.coverage.get("tier") or "none"),
    }
    if seq is not None:
        value["sequence"] = seq
        value["uid"] = f"{scene.name}:{seq}"
    return value


def _process(actor: Actor) -> dict[str, Any]:
    value: dict[str, Any] = {"pid": actor.pid, "uid": f"{actor.pid}:{actor.start_ns}", "name": actor.name}
    if actor.argv:
        value["cmd_line"] = command_line(actor.argv)
    if actor.program is not None:
        value["file"] = {"name": _leaf(actor.program), "path": shown(actor.program), "type_id": 1}
    if actor.cwd is not None:
        value["working_directory"] = shown(actor.cwd)
    value["user"] = {"uid": str(actor.uid)}
    value["parent_process"] = {"pid": actor.ppid, "uid": f"{actor.ppid}:{actor.parent_start_ns}"}
    return value


def _file(scene: Scene, record: Record) -> dict[str, Any]:
    if record.kind is Kind.OPEN:
        activity = _OPEN
    else:
        activity = (_CHANGES if record.kind is Kind.CHANGE else _LOOKS).get(record.args[0], _OTHER)
    value = _base(scene, record, FILE, activity)
    place = record.place if record.place is not None else record.asked
    value["file"] = _thing(place if place is not None else record.name)
    if record.kind is Kind.OPEN:
        value["file"]["uid"] = str(record.args[4])
        value["unmapped"]["open_flags"] = record.open_flags
    if (new := record.new_place) is not None:
        value["file_result"] = _thing(new)
    return value


def _thing(path: bytes | None) -> dict[str, Any]:
    path = path or b"?"
    value: dict[str, Any] = {"name": _leaf(path), "type_id": 0}
    if path.startswith(b"/"):
        value["path"] = shown(path)
    return value


def _leaf(path: bytes | None) -> str:
    path = path or b"?"
    return shown(path.rstrip(b"/").rpartition(b"/")[2] or b"/", 255)


def _network(scene: Scene, record: Record) -> dict[str, Any]:
    family, kind, protocol = socket_of(record)
    if record.kind is Kind.CONNECT:
        activity = 4 if record.error and not record.flags & Flag.PENDING else 1
    else:
        activity = _SOCKETS.get(record.args[0], _OTHER)
    value = _base(scene, record, NETWORK, activity)
    address = Address(record.addr)
    endpoint: dict[str, Any] = {}
    if address.ip is not None:
        endpoint = {"ip": address.ip, "port": address.port}
    elif address.name:
        endpoint = {"name": address.name}
    if not endpoint:
        endpoint = {"uid": f"socket:[{record.args[5]}]"}
    outward = record.kind is Kind.CONNECT or record.args[0] in (SocketOp.SEND, SocketOp.FASTOPEN)
    value["dst_endpoint" if outward else "src_endpoint"] = endpoint
    inward = record.kind is Kind.SOCKET and record.args[0] == SocketOp.ACCEPT
    value["connection_info"] = {"direction_id": 2 if outward else 1 if inward else 0}
    number, name = transport(family, kind, protocol)
    if number is not None:
        value["connection_info"] |= {"protocol_num": number, "protocol_name": name or str(number)}
    value["unmapped"]["family"] = family
    return value


def detection(scene: Scene, finding: Mapping[str, Any], time_ns: int) -> dict[str, Any]:
    """A finding of the verdict, with the events it points at."""
    severity = str(finding.get("severity") or "info")
    return {
        "activity_id": 1,
        "category_uid": _CATEGORY[FINDING],
        "class_uid": FINDING,
        "type_uid": FINDING * 100 + 1,
        "severity_id": _SEVERITIES.get(severity, 0),
        "time": scene.wall_ns(time_ns) // 1_000_000,
        "message": str(finding.get("text") or ""),
        "metadata": _metadata(scene),
        "finding_info": {
            "uid": f"{scene.name}:{finding.get('rule')}",
            "title": str(finding.get("rule") or "finding"),
            "desc": str(finding.get("text") or ""),
            "related_events": [{"uid": f"{scene.name}:{seq}"} for seq in _events(finding)],
        },
        "unmapped": {"severity": severity, "verdict": scene.verdict.get("word")},
    }


def _events(finding: Mapping[str, Any]) -> list[int]:
    return numbers(finding.get("seqs"))[:1000]
