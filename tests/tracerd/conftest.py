"""One daemon for all of these tests, and a client of it for each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_tracerd.cgroup import v2_root
from tracerd_rig import SEEN, Client, Daemon, make_daemon, why_no_trampoline, why_not


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module with ``TIERS`` runs every test under each of them, another one under the tier that the daemon chooses.

    Loading takes minutes in an emulated machine. There ``CAISSON_TEST_TIER`` names the tier that will be chosen, and
    one daemon serves them all.
    """
    tiers = getattr(metafunc.module, "TIERS", ())
    chosen = os.environ.get("CAISSON_TEST_TIER")
    if "daemon" not in metafunc.fixturenames or not (tiers or chosen):
        return
    ids = None if tiers else ["chosen"]
    metafunc.parametrize("tier", tiers or [chosen], ids=ids, indirect=True, scope="session")


def pytest_sessionfinish() -> None:
    SEEN.write()


@pytest.fixture(scope="session")
def tier(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "auto"))


@pytest.fixture(scope="session")
def daemon(tier: str) -> Iterator[Daemon]:
    reason = why_not() or (why_no_trampoline() if tier == "trampoline" else None)
    if reason:
        pytest.skip(reason)
    made = make_daemon("test", "--allow=nobody", tier=tier)
    try:
        made.start()
        yield made
    finally:
        parent = made.cgroup_parent
        made.remove()
    root = v2_root()
    assert root is not None
    assert not (root / parent).exists()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    made = daemon.client()
    yield made
    for box in made.stub.ListBoxes(pb.ListBoxesRequest()).boxes:
        made.drop(box.id)
    made.channel.close()
