"""What an optional part needs is told by the names of the packages themselves."""

from __future__ import annotations

import shlex
import sys

import pytest
from caisson_runner.extras import install


@pytest.mark.parametrize(
    ("extra", "needs"),
    [("gate", ["mitmproxy", "dnslib"]), ("docker", ["docker"]), ("parquet", ["pyarrow"])],
)
def test_the_hint_names_the_packages_and_the_python_that_runs(extra: str, needs: list[str]) -> None:
    words = shlex.split(install(extra))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert sorted(word.partition(">=")[0] for word in words[4:]) == sorted(needs)
