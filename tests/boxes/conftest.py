"""One conformance suite: it runs with whatever engine the current user gets, and `test_as_plain_user` runs all of it
once more as an unprivileged user when the suite itself is run as root.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Command, Finished
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store

Sh = Callable[..., Awaitable[Finished]]
TREE = {
    "/app/kept.txt": b"kept\n",
    "/app/gone.txt": b"to be removed\n",
    "/app/folder/one.txt": b"1\n",
    "/app/folder/two.txt": b"2\n",
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
async def engine(store: Store) -> AsyncIterator[LocalEngine]:
    async with LocalEngine(store) as engine:
        yield engine
    assert list((store.home / "boxes").iterdir()) == [], "a box was left behind"


@pytest.fixture
async def snapshot(engine: LocalEngine) -> Snapshot:
    return await engine.snapshot(SnapshotSpec(files=TREE))


@pytest.fixture
def sh() -> Sh:
    """Run a shell line in a box and wait for its end."""

    async def run(box: LocalBox, line: str, **options: object) -> Finished:
        return await (await box.start(Command(("/bin/sh", "-c", line), **options))).wait()  # type: ignore[arg-type]

    return run


@pytest.fixture
def py() -> Sh:
    """Run Python source in a box and wait for its end."""

    async def run(box: LocalBox, source: str, **options: object) -> Finished:
        return await (await box.start(Command(("/usr/bin/python3", "-c", source), **options))).wait()  # type: ignore[arg-type]

    return run


@pytest.fixture
def root() -> bool:
    return os.geteuid() == 0


def host_mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())
