"""The source trees that bcc compiles from go away, also those of a loader that was killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from caisson_tracerd import loader


def test_the_tree_of_a_killed_loader_is_swept_and_a_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("killed", "living"):
        (tmp_path / f"{loader.TREES}{name}" / "include").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kept").mkdir(parents=True)
    (tmp_path / f"{loader.TREES}link").symlink_to(elsewhere)
    held = os.open(tmp_path / f"{loader.TREES}living", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        loader.sweep_trees()
    finally:
        os.close(held)
    assert not (tmp_path / f"{loader.TREES}killed").exists()
    assert (tmp_path / f"{loader.TREES}living" / "include").is_dir()
    assert (elsewhere / "kept").is_dir()
