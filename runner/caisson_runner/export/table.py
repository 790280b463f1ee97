"""CSV and Parquet for data frames: the whole record as one flat table, the same columns in both.

Bytes are in the bundle's reversible escape, uncut. In CSV a text that a spreadsheet would take for a formula has its
first character escaped as well, so that opening it runs nothing; `caisson_runner.bundle.unescape` gives the bytes
back.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final

from caisson_proto.record import Record

from caisson_runner.bundle.canonical import dump_line, escape
from caisson_runner.export.errors import ExportError
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.scene import Scene
from caisson_runner.export.text import Address, errno_name, flag_names, stamp
from caisson_runner.extras import install

_TEXTS: Final = ("given", "given_exit", "resolved", "cwd", "interp", "new", "new_exit", "new_cwd", "name")
NUMBERS: Final = (
    "seq", "time_ns", "pid", "tid", "ppid", "start_ns", "parent_start_ns", "cgroup", "uid", "gid", "error",
    *(f"arg{at}" for at in range(6)),
)  # fmt: skip
"""Columns of unsigned 64-bit integers; all others are text."""
COLUMNS: Final = (
    "seq", "time", "time_ns", "kind", "op", "pid", "tid", "ppid", "start_ns", "parent_start_ns", "cgroup", "uid", "gid",
    "error", "errno", "flags", "comm", "path", "new_path", "argv", *_TEXTS, "ip", "port", "addr",
    *(f"arg{at}" for at in range(6)),
)  # fmt: skip
GROUP: Final = 65_536
_FORMULA: Final = frozenset("=+-@\t\r")


def row(scene: Scene, record: Record) -> dict[str, Any]:
    """One event by column; None where it has no such value."""
    address = Address(record.addr)
    return {
        "seq": record.seq,
        "time": stamp(scene.wall_ns(record.time_ns)),
        "time_ns": record.time_ns,
        "kind": record.kind.name.lower(),
        "op": op_name(record),
        "pid": record.pid,
        "tid": record.tid,
        "ppid": record.ppid,
        "start_ns": record.start_ns,
        "parent_start_ns": record.parent_start_ns,
        "cgroup": record.cgroup,
        "uid": record.uid,
        "gid": record.gid,
        "error": record.error,
        "errno": errno_name(record.error),
        "flags": " ".join(flag_names(record.flags)),
        "comm": escape(record.comm),
        "path": _text(record.place),
        "new_path": _text(record.new_place),
        "argv": None if record.argv is None else dump_line([escape(one) for one in record.argv]).decode().rstrip(),
        **{name: _text(getattr(record, name)) for name in _TEXTS},
        "ip": address.ip,
        "port": None if address.port is None else str(address.port),
        "addr": None if record.addr is None else record.addr.hex(),
        **{f"arg{at}": value for at, value in enumerate(record.args)},
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else escape(data)


def csv_lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """RFC 4180, with a header."""
    yield _line(COLUMNS)
    for record in records:
        value = row(scene, record)
        yield _line([_cell(value[name]) for name in COLUMNS])


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"\\x{ord(text[0]):02x}{text[1:]}" if text and text[0] in _FORMULA else text


def _line(cells: Iterable[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue().encode("utf-8")


def write_parquet(scene: Scene, records: Iterable[Record], out: BinaryIO) -> None:
    """Row groups of `GROUP` events. Raises `ExportError` when pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ExportError(f"Parquet needs pyarrow, which is not installed here: {install('parquet')}") from None
    kinds = [(name, pyarrow.uint64() if name in NUMBERS else pyarrow.string()) for name in COLUMNS]
    about = {"caisson.run": scene.name, "caisson.task": scene.task, "caisson.agent": scene.agent}
    schema = pyarrow.schema(kinds, metadata=about)
    left = iter(records)
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        while group := [row(scene, record) for record in islice(left, GROUP)]:
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
