"""Every format as its published schema wants it, and nothing of a box unescaped in any of them."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import bundle_sample as sample
import pytest
from caisson_proto.record import Kind, Record
from caisson_runner.bundle import Bundle, unescape
from caisson_runner.export import FORMATS, Scene, export, table
from caisson_runner.export.errors import ExportError
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.table import COLUMNS, NUMBERS
from published import (
    ECS,
    ECS_OUTCOMES,
    ECS_TYPES_OF,
    OCSF_BASE,
    OCSF_CLASSES,
    OCSF_OBJECTS,
    OCSF_ONE_OF,
    TETRAGON,
    holds,
)

GOLDEN = Path(__file__).parent / "golden"
TEXTS = [name for name, form in FORMATS.items() if form.lines is not None]
RECORDS = sample.story()


def exported(bundle: Bundle, name: str) -> bytes:
    out = io.BytesIO()
    export(bundle, name, out)
    return out.getvalue()


def rows(bundle: Bundle, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in exported(bundle, name).splitlines()]


@pytest.mark.parametrize("name", TEXTS)
def test_export_is_the_golden_one(bundle: Bundle, name: str) -> None:
    """Written anew with CAISSON_WRITE_GOLDEN=1, to be looked at before it is committed."""
    path = GOLDEN / f"{name}.txt"
    data = exported(bundle, name)
    if os.environ.get("CAISSON_WRITE_GOLDEN"):
        path.write_bytes(data)
    assert data == path.read_bytes()


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_a_box_made_is_unescaped(bundle: Bundle, name: str) -> None:
    data = exported(bundle, name)
    text = data.decode("utf-8")
    assert all(line.isprintable() for line in text.splitlines())
    assert "<script" not in text


@pytest.mark.parametrize("name", TEXTS)
def test_long_strings_are_cut_where_a_format_is_for_looking_and_nowhere_else(tmp_path: Path, name: str) -> None:
    record = Record(Kind.EXEC, pid=1, start_ns=1, given=b"/" + b"a" * 4000, argv=(b"b" * 100_000,) * 2, cwd=b"/")
    bundle = sample.bundle(tmp_path / "b", [record, Record(Kind.EXIT, pid=1, start_ns=1)])
    size = len(exported(bundle, name))
    if name in ("jsonl", "csv"):
        assert size > 200_000
    else:
        assert size < 100_000


def test_jsonl_holds_the_whole_record(bundle: Bundle) -> None:
    found = rows(bundle, "jsonl")
    assert len(found) == len(RECORDS)
    for value, record in zip(found, RECORDS, strict=True):
        assert (value["kind"], value.get("op")) == (record.kind.name.lower(), op_name(record))
        assert tuple(value["args"]) == record.args
        assert unescape(value["comm"]) == record.comm
        for field in ("given", "resolved", "cwd", "new", "name"):
            data = getattr(record, field)
            assert (unescape(value[field]) if field in value else None) == data
        assert (tuple(map(unescape, value["argv"])) if "argv" in value else None) == record.argv
        assert bytes.fromhex(value.get("addr", "")) == (record.addr or b"")
    assert found[5]["time"] == "2026-11-30T12:00:00.005000000Z"
    assert found[9]["errno"] == "ENETUNREACH"


def test_ocsf_has_what_its_classes_require(bundle: Bundle) -> None:
    found = rows(bundle, "ocsf")
    assert len(found) == len(RECORDS) + 1
    for value in found:
        for key, kind in OCSF_BASE.items():
            assert type(value[key]) is kind, key
        rule = OCSF_CLASSES[value["class_uid"]]
        assert value["category_uid"] == rule["category"]
        assert value["activity_id"] in rule["activities"]
        assert value["type_uid"] == value["class_uid"] * 100 + value["activity_id"]
        assert rule["required"] <= set(value)
        assert value["activity_id"] != 99 or value["activity_name"]
        if value["class_uid"] == 4001:
            assert {"src_endpoint", "dst_endpoint"} & set(value)
        _objects(value)


def _objects(value: dict[str, Any]) -> None:
    for key, one in value.items():
        if isinstance(one, dict) and key != "unmapped":
            assert OCSF_OBJECTS.get(key, set()) <= set(one), key
            assert key not in OCSF_ONE_OF or OCSF_ONE_OF[key] & set(one), key
            _objects(one)


def test_ocsf_says_what_happened(bundle: Bundle) -> None:
    found = rows(bundle, "ocsf")
    assert Counter((one["class_uid"], one["activity_id"]) for one in found) == {
        (1007, 1): 4, (1007, 2): 2, (1001, 14): 2, (1001, 5): 1, (1001, 4): 1, (1001, 8): 1, (4001, 4): 2, (4001, 1): 1,
        (4001, 6): 1, (1003, 4): 2, (2004, 1): 1,
    }  # fmt: skip
    assert found[1]["actor"]["process"]["pid"] == 7
    assert found[1]["process"]["pid"] == 8
    assert (found[2]["status_detail"], found[2]["process"]["path"]) == ("ENOENT", "/nope")
    assert found[9]["dst_endpoint"] == {"ip": "192.0.2.1", "port": 443}
    assert found[9]["connection_info"]["protocol_name"] == "tcp"
    finding = found[-1]
    assert finding["finding_info"]["related_events"] == [{"uid": "add-mul-cheat-1:6"}]
    assert finding["severity_id"] == 3


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, one in value.items():
        name = above + key
        if name != "caisson":
            found |= _flat(one, name + ".") if isinstance(one, dict) else {name: one}
    return found


def test_ecs_has_only_fields_of_the_schema_with_their_types_and_values(bundle: Bundle) -> None:
    met: set[str] = set()
    for document in rows(bundle, "ecs"):
        flat = _flat(document)
        met |= set(flat)
        for name, value in flat.items():
            kind = ECS[name]
            values = value if kind.endswith("[]") else [value]
            assert isinstance(values, list), name
            assert all(type(one) is (int if kind == "long" else str) for one in values), name
            if kind == "ip":
                ipaddress.ip_address(value)
        for category in flat["event.category"]:
            assert set(flat["event.type"]) <= ECS_TYPES_OF[category]
        assert flat["event.outcome"] in ECS_OUTCOMES
        assert {"@timestamp", "ecs.version", "event.kind"} <= set(flat)
    assert {"destination.ip", "file.target_path", "process.exit_code", "error.code"} <= met


def test_tetragon_events_are_messages_of_its_protobuf(bundle: Bundle) -> None:
    found = rows(bundle, "tetragon")
    for value in found:
        holds(value, "GetEventsResponse", TETRAGON, "event")
        assert sum(key.startswith("process_") for key in value) == 1
        for argument in next(iter(value[key] for key in value if key.startswith("process_"))).get("args", ()):
            assert len(argument) == 1
    execs = [one["process_exec"] for one in found if "process_exec" in one]
    assert [one["process"]["binary"] for one in execs] == ["/bin/sh", "/usr/bin/python3"]
    assert execs[1]["parent"]["exec_id"] == execs[0]["process"]["exec_id"] == execs[1]["process"]["parent_exec_id"]
    (killed,) = [one["process_exit"] for one in found if one.get("process_exit", {}).get("signal")]
    assert killed["signal"] == "SIGKILL"


def test_perfetto_gets_a_chrome_trace(bundle: Bundle) -> None:
    """Source: the Trace Event Format, sections on complete, instant and metadata events."""
    document = json.loads(exported(bundle, "perfetto"))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert event["ph"] in "MXi"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index")
        else:
            assert event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "i" or event["s"] in "gpt"
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(one["pid"], one["name"], one["args"].get("end")) for one in slices] == [
        (8, "sh", None), (8, "python3", "SIGKILL"), (7, "sh", "exit 3"),
    ]  # fmt: skip


def test_process_that_never_ended_has_a_slice_to_the_end(tmp_path: Path) -> None:
    document = json.loads(exported(sample.bundle(tmp_path / "b", RECORDS[:10]), "perfetto"))
    ends = [event["args"].get("end") for event in document["traceEvents"] if event["ph"] == "X"]
    assert ends == [None, "still running at the end", "still running at the end"]


def test_csv_is_read_back_as_the_record(bundle: Bundle) -> None:
    found = list(csv.DictReader(io.StringIO(exported(bundle, "csv").decode(), newline="")))
    assert list(found[0]) == list(COLUMNS)
    assert [int(one["seq"]) for one in found] == [record.seq for record in RECORDS]
    assert unescape(found[5]["path"]) == sample.EVIL
    assert [unescape(word) for word in json.loads(found[3]["argv"])] == [b"python3", sample.EVIL, b""]
    assert (found[9]["ip"], found[9]["port"]) == ("192.0.2.1", "443")
    assert int(found[4]["arg0"]) == 2**64 - 100


@pytest.mark.parametrize("name", [b"=cmd", b"+1", b"-1", b"@x", b"\tx"])
def test_csv_runs_nothing_in_a_spreadsheet(tmp_path: Path, name: bytes) -> None:
    bundle = sample.bundle(tmp_path / "b", [Record(Kind.EXIT, pid=1, comm=name)])
    (found,) = csv.DictReader(io.StringIO(exported(bundle, "csv").decode(), newline=""))
    assert found["comm"][0] == "\\"
    assert unescape(found["comm"]) == name


def test_parquet_is_the_same_table_with_types(bundle: Bundle) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    found = parquet.read_table(io.BytesIO(exported(bundle, "parquet")))
    assert found.column_names == list(COLUMNS)
    assert {str(found.schema.field(name).type) for name in NUMBERS} == {"uint64"}
    values = found.to_pylist()
    assert [one["seq"] for one in values] == [record.seq for record in RECORDS]
    assert values[4]["arg0"] == 2**64 - 100
    assert unescape(values[5]["path"]) == sample.EVIL
    assert found.schema.metadata[b"caisson.run"] == b"add-mul-cheat-1"


def test_parquet_is_written_in_groups(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr(table, "GROUP", 5)
    assert parquet.ParquetFile(io.BytesIO(exported(bundle, "parquet"))).num_row_groups == 4


def test_parquet_without_pyarrow_says_what_to_install(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"-m pip install 'pyarrow>=17'"):
        exported(bundle, "parquet")


def test_exports_hold_one_event_at_a_time(tmp_path: Path) -> None:
    """What is asked of the record while it is being written is never more than a few events ahead."""
    bundle = sample.bundle(tmp_path / "b", [])
    for name in ("jsonl", "ocsf", "ecs", "tetragon", "perfetto", "csv"):
        taken = 0

        def counted() -> Any:
            nonlocal taken
            for record in sample.many(1000):
                taken += 1
                yield record

        lines = FORMATS[name].lines
        assert lines is not None
        written = 0
        for written, _line in enumerate(lines(Scene.of(bundle), counted()), 1):
            assert taken <= written + 3
        assert written >= 1000


def test_bundle_without_a_witness_exports_as_nothing(tmp_path: Path) -> None:
    from caisson_runner.bundle import BundleWriter

    with BundleWriter(tmp_path / "b") as writer:
        writer.add_json("run.json", {"id": "r"})
    bundle = Bundle.open(tmp_path / "b")
    for name in TEXTS:
        exported(bundle, name)
    assert rows(bundle, "jsonl") == []
