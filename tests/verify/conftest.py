"""One engine and one add-mul for all tests of rooms: forks are what is tested, not set-up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from caisson_runner.boxes.errors import ToolMissing, UserNamespacesUnavailable
from caisson_runner.tasks import load_task
from verify_rig import Bench, bench


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def add_mul(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = Path(tmp_path_factory.mktemp("verify"))
    folder.chmod(0o755)
    try:
        async with bench(load_task("add-mul"), folder) as made:
            yield made
    except (ToolMissing, UserNamespacesUnavailable) as missing:
        pytest.skip(str(missing))
