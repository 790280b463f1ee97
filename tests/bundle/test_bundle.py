"""Writing and checking bundles: whole or not there, and every change is named."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from caisson_proto.record import Kind, Record, encode
from caisson_runner.bundle import (
    EVENTS,
    Bundle,
    BundleDamaged,
    BundleError,
    BundleWriter,
    StoredChange,
    dumps,
    escape,
    loads,
    unescape,
)
from hypothesis import given
from hypothesis import strategies as st

CHANGES = [
    StoredChange(b"app/\xff\n\\x", "added", "file", 0o644, 3, "0" * 64, b""),
    StoredChange(b"app/link", "added", "link", 0o777, 0, "", b"../\x1b[31m"),
    StoredChange(b"app/gone", "removed", "file", 0, 0, "", b""),
]


def make(target: Path) -> Bundle:
    events = target.parent / "events.bin"
    events.write_bytes(b"".join(encode(Record(Kind.OPEN, given=b"/a\xff", pid=at)) for at in range(100)))
    with BundleWriter(target) as writer:
        writer.add_json("run.json", {"id": "r1", "n": 1})
        writer.add_json("coverage.json", {"complete": False})
        writer.add_events(events)
        writer.add_changes(CHANGES)
        writer.add_bytes("logs/agent.stdout", b"\x00\xff")
        writer.path("state/upper.tar.zst").write_bytes(b"tar")
    return Bundle.open(target)


def test_bundle_gives_back_what_was_put_in(tmp_path: Path) -> None:
    bundle = make(tmp_path / "b")
    assert bundle.verify() == 7
    assert bundle.json("run.json") == {"id": "r1", "n": 1}
    assert [one.pid for one in bundle.records()] == list(range(100))
    assert [one.seq for one in bundle.records()] == list(range(1, 101))
    assert sorted(bundle.changes(), key=lambda one: one.path) == sorted(CHANGES, key=lambda one: one.path)
    assert not (tmp_path / "b.partial").exists()


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a"), make(tmp_path / "b")
    assert (one.root / "manifest.json").read_bytes() == (two.root / "manifest.json").read_bytes()


@dataclass(frozen=True)
class Damage:
    do: Callable[[Path], object]
    path: str
    says: str


@pytest.mark.parametrize(
    "damage",
    [
        Damage(lambda b: (b / "run.json").write_bytes(b'{"id": "r2"}'), "run.json", "changed"),
        Damage(lambda b: (b / EVENTS).write_bytes((b / EVENTS).read_bytes()[:-1] + b"\0"), EVENTS, "is now 0x00"),
        Damage(lambda b: (b / "logs/agent.stdout").unlink(), "logs/agent.stdout", "missing"),
        Damage(lambda b: (b / "extra").touch(), "extra", "not in its manifest"),
        Damage(lambda b: (b / "z").symlink_to("/etc/passwd"), "z", "neither"),
        Damage(lambda b: os.mkfifo(b / "pipe"), "pipe", "neither"),
    ],
)
def test_first_file_that_is_not_as_the_manifest_says_is_named(tmp_path: Path, damage: Damage) -> None:
    bundle = make(tmp_path / "b")
    damage.do(bundle.root)
    with pytest.raises(BundleDamaged, match=damage.says) as caught:
        Bundle.open(bundle.root, verify=True)
    assert caught.value.path == damage.path
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "manifest",
    [
        b"", b"[]", b'{"format": "other"}', b'{"format": "caisson.bundle/v1"}', b'{"a": 1, "a": 2}', b'{"a": NaN}',
        b'{"format": "caisson.bundle/v1", "files": {"../x": {"sha256": "", "size": 0}}}',
        b'{"format": "caisson.bundle/v1", "files": {"x": {"sha256": "", "size": -1}}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_bad_manifest_is_one_clear_line(tmp_path: Path, manifest: bytes) -> None:
    bundle = make(tmp_path / "b")
    (bundle.root / "manifest.json").write_bytes(manifest)
    with pytest.raises(BundleError) as caught:
        Bundle.open(bundle.root, verify=True)
    assert "\n" not in str(caught.value)


def test_folder_that_is_no_bundle_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no bundle"):
        Bundle.open(tmp_path)


def test_interrupted_bundle_never_gets_its_name(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BundleWriter(tmp_path / "b") as writer:
        writer.add_bytes("run.json", b"{}")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_partial_bundle_of_a_killed_runner_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "b.partial/state").mkdir(parents=True)
    (tmp_path / "b.partial/state/old").touch()
    (tmp_path / "b.partial/link").symlink_to("/")
    make(tmp_path / "b").verify()


def test_two_writers_never_share_a_place(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        with pytest.raises(BundleError, match="another run"):
            BundleWriter(tmp_path / "b")
        writer.add_bytes("run.json", b"{}")
    with pytest.raises(BundleError, match="exists already"):
        BundleWriter(tmp_path / "b")


@pytest.mark.parametrize("name", ["../x", "/x", "", ".hidden", "a//b", "a/./b", "a\nb", "ä", "manifest.json", "a\\b"])
def test_names_never_leave_the_bundle(tmp_path: Path, name: str) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        with pytest.raises(BundleError):
            writer.add_bytes(name, b"")


def test_damaged_record_is_named_not_crashed_on(tmp_path: Path) -> None:
    bundle = make(tmp_path / "b")
    for data in (b"junk", zstandard.compress(b"\xff" * 500)):
        (bundle.root / EVENTS).write_bytes(data)
        with pytest.raises(BundleDamaged, match="events"):
            list(bundle.records())


def test_long_record_is_read_in_bounded_memory(tmp_path: Path) -> None:
    events = tmp_path / "events.bin"
    events.write_bytes(encode(Record(Kind.OPEN, given=b"/a" * 1000)) * 20_000)
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_events(events)
    bundle = Bundle.open(tmp_path / "b")
    tracemalloc.start()
    try:
        count = sum(1 for _ in bundle.records())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 12 << 20, f"{events.stat().st_size} bytes of records took {peak}"


@given(st.binary(max_size=60))
def test_escape_is_reversible_and_plain(data: bytes) -> None:
    text = escape(data)
    assert unescape(text) == data
    assert text.isprintable()


@given(st.binary(max_size=60) | st.just("é\u202e\\".encode()))
def test_different_bytes_have_different_text(data: bytes) -> None:
    assert escape(data + b"\xff") != escape(data) != escape(data + b"\\")


def test_json_has_one_text() -> None:
    assert dumps({"b": 1, "a": "é"}) == b'{\n  "a": "\\u00e9",\n  "b": 1\n}\n'
    assert loads(dumps({"b": [1.5, None]}), "x") == {"b": [1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))
