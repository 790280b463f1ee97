"""What every test is held to."""

from __future__ import annotations

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The markers `root` and `bpf` say what a test needs, also where none of its fixtures does."""
    if os.geteuid() != 0 and (item.get_closest_marker("root") or item.get_closest_marker("bpf")):
        pytest.skip("needs root")
