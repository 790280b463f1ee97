"""One bundle with every kind of event, for all exporters; its maker is shared with the tests of bundles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

import bundle_sample
from caisson_runner.bundle import Bundle
from caisson_runner.bundle.keys import Signer
from caisson_runner.export import Scene

SIGNER = Signer.of(bytes(range(32)))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    yield bundle_sample.bundle(tmp_path_factory.mktemp("export") / "b", signer=SIGNER)


@pytest.fixture(scope="session")
def scene(bundle: Bundle) -> Scene:
    return Scene.of(bundle)
