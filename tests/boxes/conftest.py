"""One conformance suite, for every engine. The local one is what the current user gets, and `test_as_plain_user` runs
all of it once more as an unprivileged user when the suite itself is run as root. The docker engine gets a daemon of the
suite's own; where it differs by nature, the test says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Command, Finished
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store

sys.path.insert(0, str(Path(__file__).parents[1] / "docker"))
from docker_daemon import Dockerd, dockerd, why_not

Sh = Callable[..., Awaitable[Finished]]
MakeEngine = Callable[..., AbstractAsyncContextManager[LocalEngine]]
TREE = {
    "/app/kept.txt": b"kept\n",
    "/app/gone.txt": b"to be removed\n",
    "/app/folder/one.txt": b"1\n",
    "/app/folder/two.txt": b"2\n",
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    if reason := why_not():
        pytest.skip(reason)
    with dockerd(tmp_path_factory.mktemp("dockerd")) as running:
        yield running


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which engine."""
    return str(request.param)


STORE_ALONE = (
    "test_bad_requests", "test_changed_file", "test_changed_manifests", "test_damaged_state", "test_deep_nesting",
    "test_hostile_state", "test_list_labels", "test_many_boxes", "test_root_filesystem_with_escaping",
)  # fmt: skip
"""Promises that the store and the packer keep for every engine; with docker they only take longer."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name.startswith(STORE_ALONE) and "docker" in item.name.partition("[")[2]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def make_engine(kind: str, request: pytest.FixtureRequest) -> MakeEngine:
    """An engine of the kind under test, on any store: an async context manager."""
    if kind == "local":
        return LocalEngine
    running: Dockerd = request.getfixturevalue("daemon")
    from caisson_runner.boxes.docker import DockerEngine

    return lambda store, **options: DockerEngine(store, host=running.host, **options)


@pytest.fixture
async def engine(store: Store, make_engine: MakeEngine) -> AsyncIterator[LocalEngine]:
    async with make_engine(store) as engine:
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
