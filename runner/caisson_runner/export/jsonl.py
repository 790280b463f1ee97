"""JSON Lines: the whole record, one event a line, nothing cut and nothing left out.

Bytes are in the bundle's reversible escape (`caisson_runner.bundle.unescape`). Fields that an event has not are not
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from caisson_proto.record import ChangeOp, CrossOp, Kind, LookOp, PassOp, Record, SocketOp

from caisson_runner.bundle.canonical import dump_line, escape
from caisson_runner.export.scene import Scene
from caisson_runner.export.text import errno_name, flag_names, stamp

OPS: Final[Mapping[Kind, type[ChangeOp] | type[LookOp] | type[PassOp] | type[CrossOp] | type[SocketOp]]] = {
    Kind.CHANGE: ChangeOp,
    Kind.LOOK: LookOp,
    Kind.PASS: PassOp,
    Kind.CROSS: CrossOp,
    Kind.SOCKET: SocketOp,
}
_TEXTS: Final = ("given", "given_exit", "resolved", "cwd", "interp", "new", "new_exit", "new_cwd", "name")


def op_name(record: Record) -> str | None:
    """What kind of change, look, … it is; None of kinds that have no such word."""
    ops = OPS.get(record.kind)
    return ops(record.args[0]).name.lower() if ops is not None else None


def row(scene: Scene, record: Record) -> dict[str, Any]:
    """One event as a flat table of JSON values."""
    value: dict[str, Any] = {
        "seq": record.seq,
        "time": stamp(scene.wall_ns(record.time_ns)),
        "time_ns": record.time_ns,
        "kind": record.kind.name.lower(),
        "pid": record.pid,
        "tid": record.tid,
        "ppid": record.ppid,
        "start_ns": record.start_ns,
        "parent_start_ns": record.parent_start_ns,
        "cgroup": record.cgroup,
        "uid": record.uid,
        "gid": record.gid,
        "error": record.error,
        "flags": flag_names(record.flags),
        "comm": escape(record.comm),
        "args": list(record.args),
    }
    if (op := op_name(record)) is not None:
        value["op"] = op
    if (name := errno_name(record.error)) is not None:
        value["errno"] = name
    for field in _TEXTS:
        if (data := getattr(record, field)) is not None:
            value[field] = escape(data)
    if record.argv is not None:
        value["argv"] = [escape(one) for one in record.argv]
    if record.addr is not None:
        value["addr"] = record.addr.hex()
    return value


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """The lines."""
    for record in records:
        yield dump_line(row(scene, record))
