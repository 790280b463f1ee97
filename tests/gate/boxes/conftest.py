"""An engine of each kind, and a rig on it, for every test in this folder."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Store

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "docker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "witness"))
from docker_daemon import Dockerd, dockerd, why_not
from gate_rig import Rig
from http_rig import World


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
async def engine(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[LocalEngine]:
    if request.param == "docker":
        running: Dockerd = request.getfixturevalue("daemon")
        from caisson_runner.boxes.docker import DockerEngine

        async with DockerEngine(store, host=running.host) as docker:
            yield docker  # type: ignore[misc]
    else:
        async with LocalEngine(store) as local:
            yield local
    assert list((store.home / "boxes").iterdir()) == [], "a box was left behind"


@pytest.fixture
def rig(engine: LocalEngine, tmp_path: Path) -> Rig:
    return Rig(engine, World(tmp_path), tmp_path)


@pytest.fixture
async def local_rig(store: Store, tmp_path: Path) -> AsyncIterator[Rig]:
    """The same with the local engine only: for promises that do not depend on who made the namespace."""
    async with LocalEngine(store) as local:
        yield Rig(local, World(tmp_path), tmp_path)


@pytest.fixture
def nonce() -> str:
    return secrets.token_hex(12)
