"""The packed record: any part of it without the rest, and the same record whoever unpacks it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import bundle_sample as sample
import pytest
from caisson_proto.record import Kind, Record, RecordError, encode
from caisson_runner.bundle import EVENTS, Bundle, BundleDamaged, recording
from caisson_runner.bundle.recording import INDEX, Index, Wanted, ranges, read_record, write_record
from hypothesis import given
from hypothesis import strategies as st

RECORDS = list(sample.many(30_000))
RAW = b"".join(map(encode, RECORDS))


@pytest.fixture(scope="module")
def packed() -> tuple[io.BytesIO, Index]:
    out = io.BytesIO()
    index = write_record([RAW[at : at + 70_001] for at in range(0, len(RAW), 70_001)], out)
    return out, index


def test_frames_hold_whole_records_and_all_of_them(packed: tuple[io.BytesIO, Index]) -> None:
    out, index = packed
    assert len(index.frames) > 4
    assert index.records == len(RECORDS)
    assert index.raw == len(RAW)
    assert list(read_record(out, index)) == RECORDS
    assert Index.parse(json.loads(index.dumps())) == index


@pytest.mark.parametrize(
    ("wanted", "keep"),
    [
        (Wanted(start=sample.BOOT + 20_000_000), lambda one: one.time_ns >= sample.BOOT + 20_000_000),
        (Wanted(end=sample.BOOT + 5_000), lambda one: one.time_ns < sample.BOOT + 5_000),
        (Wanted(pid=1007), lambda one: one.pid == 1007),
        (Wanted(pid=4), lambda one: False),
        (Wanted(seq=29_998), lambda one: one.seq >= 29_998),
        (Wanted(sample.BOOT + 1_000_000, sample.BOOT + 9_000_000, 1003), lambda one: (
            one.pid == 1003 and 1_000_000 <= one.time_ns - sample.BOOT < 9_000_000
        )),
    ],
)  # fmt: skip
def test_what_is_wanted_is_what_a_full_reading_would_pick(
    packed: tuple[io.BytesIO, Index], wanted: Wanted, keep: Callable[[Record], bool]
) -> None:
    assert list(read_record(*packed, wanted)) == [one for one in RECORDS if keep(one)]


def test_only_frames_that_can_hold_what_is_wanted_are_unpacked(
    packed: tuple[io.BytesIO, Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []
    unpack = recording._unpacked

    def counting(file: io.BytesIO, frame: recording.Frame, how: object) -> bytes:
        unpacked.append(frame.position)
        return unpack(file, frame, how)

    monkeypatch.setattr(recording, "_unpacked", counting)
    out, index = packed
    assert len(list(read_record(out, index, Wanted(seq=29_999)))) == 2
    assert len(unpacked) == 1
    assert list(read_record(out, index, Wanted(pid=7))) == []
    assert len(unpacked) == 1


def test_any_zstd_unpacks_it_to_the_canonical_record(packed: tuple[io.BytesIO, Index], tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("no zstd command here")
    (tmp_path / "events.bin.zst").write_bytes(packed[0].getvalue())
    assert subprocess.run(["zstd", "-dc", tmp_path / "events.bin.zst"], capture_output=True, check=True).stdout == RAW


def test_seek_table_is_in_the_form_others_read(packed: tuple[io.BytesIO, Index]) -> None:
    """Source: facebook/zstd, contrib/seekable_format/zstd_seekable_compression_format.md."""
    data, index = packed[0].getvalue(), packed[1]
    assert data[-4:] == bytes.fromhex("b1ea928f")
    assert int.from_bytes(data[-9:-5], "little") == len(index.frames)
    size = 8 + 8 * len(index.frames) + 9
    assert data[-size:][:8] == bytes.fromhex("5e2a4d18") + (size - 8).to_bytes(4, "little")
    assert sum(frame.size for frame in index.frames) == len(data) - size


def test_records_without_numbers_of_their_own_are_numbered_across_frames() -> None:
    raw = b"".join(encode(Record(Kind.OPEN, pid=1, given=b"/x" * 2000)) for _ in range(1000))
    out = io.BytesIO()
    index = write_record([raw], out)
    assert len(index.frames) > 1
    assert [one.seq for one in read_record(out, index)] == list(range(1, 1001))
    assert [one.seq for one in read_record(out, index, Wanted(seq=998))] == [998, 999, 1000]


def test_empty_record_is_a_record(tmp_path: Path) -> None:
    bundle = sample.bundle(tmp_path / "b", [])
    assert list(bundle.records()) == []
    assert bundle.index().records == 0
    assert bundle.verify() == 9


@pytest.mark.parametrize("tail", [b"\0", RAW[:100], b"\xff" * 200])
def test_what_is_no_record_is_not_packed(tail: bytes) -> None:
    with pytest.raises(RecordError, match=f"at byte {len(RAW[:16_000_000])}"):
        write_record([RAW, tail], io.BytesIO())


def test_one_event_is_found_by_its_number(tmp_path: Path) -> None:
    bundle = sample.bundle(tmp_path / "b", RECORDS)
    assert bundle.record(17_777) == RECORDS[17_776]
    assert bundle.record(0) is None
    assert bundle.record(99_999_999) is None
    assert list(bundle.records(pid=1001)) == [one for one in RECORDS if one.pid == 1001]


@given(st.sets(st.integers(1, 1 << 22), min_size=1, max_size=300), st.integers(1, 40))
def test_ranges_of_pids_miss_none_and_are_few(pids: set[int], most: int) -> None:
    found = ranges(pids, most)
    assert len(found) <= most
    assert all(any(low <= pid <= high for low, high in found) for pid in pids)
    assert {edge for pair in found for edge in pair} <= pids
    assert list(found) == sorted(found)


def table(bundle: Bundle) -> dict[str, object]:
    return json.loads((bundle.root / INDEX).read_bytes())


@pytest.mark.parametrize("at,value", [(0, 9), (2, 1 << 40), (2, 0), (3, -1), (4, 7), (5, "1"), (6, True), (9, [[1]])])
def test_index_that_is_out_of_bounds_is_refused(tmp_path: Path, at: int, value: object) -> None:
    bundle = sample.bundle(tmp_path / "b")
    index = table(bundle)
    index["frames"][0][at] = value  # type: ignore[index]
    (bundle.root / INDEX).write_text(json.dumps(index))
    with pytest.raises(BundleDamaged, match="is no index of a record") as caught:
        list(bundle.records())
    assert caught.value.path == INDEX


def test_frame_that_is_not_as_the_index_says_is_named(tmp_path: Path) -> None:
    bundle = sample.bundle(tmp_path / "b")
    (bundle.root / EVENTS).write_bytes((bundle.root / EVENTS).read_bytes()[:50])
    with pytest.raises(BundleDamaged, match="its frame at byte 0 is damaged") as caught:
        list(bundle.records())
    assert caught.value.path == EVENTS
