"""Bodies by content: what is named by a digest has that content, whatever happens on the way."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from caisson_gate.bodies import SPILL, BodyStore
from caisson_gate.credentials import Redactor

NONE = Redactor({})
SIZES = [1, 1000, SPILL, SPILL + 1, 5 * SPILL + 7]


def put(store: BodyStore, data: bytes, step: int = 50_000):
    recording = store.start()
    for at in range(0, len(data), step):
        recording.write(data[at : at + step])
    return recording.finish()


@pytest.mark.parametrize("size", SIZES)
def test_a_body_lies_under_its_digest_once(tmp_path: Path, size: int) -> None:
    store = BodyStore(tmp_path / "bodies", NONE)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for _ in range(2):
        body = put(store, data)
        assert (body.sha256, body.length, body.kept) == (hashlib.sha256(data).hexdigest(), size, True)
    assert [path.name for path in store.folder.iterdir()] == [body.sha256]
    assert store.path(body.sha256).read_bytes() == data


def test_an_empty_body_has_a_digest_and_no_file(tmp_path: Path) -> None:
    store = BodyStore(tmp_path / "bodies", NONE)
    body = store.put(b"")
    assert (body.sha256, body.length, body.kept) == (hashlib.sha256(b"").hexdigest(), 0, False)
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_body_that_is_dropped_leaves_nothing(tmp_path: Path, size: int) -> None:
    store = BodyStore(tmp_path / "bodies", NONE)
    recording = store.start()
    recording.write(b"x" * size)
    recording.drop()
    recording.drop()
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("size", SIZES)
def test_without_keeping_there_are_digests_only(tmp_path: Path, size: int) -> None:
    body = put(BodyStore(tmp_path / "bodies", NONE, keep=False), b"y" * size)
    assert (body.sha256, body.kept) == (hashlib.sha256(b"y" * size).hexdigest(), False)
    assert not (tmp_path / "bodies").exists()


def test_beyond_the_limit_of_the_store_bodies_are_hashed_and_not_kept(tmp_path: Path) -> None:
    store = BodyStore(tmp_path / "bodies", NONE, limit=3 * SPILL)
    first = put(store, b"a" * 2 * SPILL)
    second = put(store, b"b" * 2 * SPILL)
    third = put(store, b"c" * (SPILL // 2))
    assert (first.kept, second.kept, third.kept) == (True, False, True)
    assert second.sha256 == hashlib.sha256(b"b" * 2 * SPILL).hexdigest()
    assert {path.name for path in store.folder.iterdir()} == {first.sha256, third.sha256}


def test_a_full_disk_costs_the_body_and_not_the_traffic(tmp_path: Path) -> None:
    store = BodyStore(tmp_path / "bodies", NONE)
    recording = store.start()
    store.folder.rmdir()  # from now on no file can be made there
    for _ in range(8):
        recording.write(b"z" * SPILL)
    body = recording.finish()
    assert (body.sha256, body.kept) == (hashlib.sha256(b"z" * 8 * SPILL).hexdigest(), False)
    assert store.put(b"small").kept is False


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    store = BodyStore(tmp_path / "bodies", NONE)
    for _ in range(3):
        put(store, b"x" * 4 * SPILL)
        recording = store.start()
        recording.write(b"y" * 2 * SPILL)
        recording.drop()
    assert threading.active_count() == before


def test_the_digest_is_that_of_what_was_kept(tmp_path: Path) -> None:
    store = BodyStore(tmp_path / "bodies", Redactor({"KEY": b"very-secret-value"}))
    body = put(store, b"x" * SPILL + b"very-secret-value" + b"y" * SPILL, step=9)
    kept = store.path(body.sha256).read_bytes()
    assert body.redacted and b"secret" not in kept and hashlib.sha256(kept).hexdigest() == body.sha256
