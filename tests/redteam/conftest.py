"""Fixtures of the red team's tests: a store of their own, and a register of their own to be wrong in."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.redteam.command import Wanted, redteam_command
from caisson_runner.tasks.search import scenarios_root

sys.path.insert(0, str(Path(__file__).parent))
from redteam_rig import Try


@pytest.fixture
def routes() -> Path:
    return scenarios_root() / "routes"


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Try:
    """Run some routes with this user's local engine and strace: the exit code and the report."""
    monkeypatch.setenv("CAISSON_HOME", str(tmp_path / "home"))

    def run(*only: str, folder: Path | None = None, **options: Any) -> tuple[int, dict[str, Any]]:
        wanted = Wanted("local", only, witness="strace", out=tmp_path / "out", folder=folder, **options)
        code = redteam_command(wanted, True, tmp_path / "found.sarif", False)
        boxes = tmp_path / "home" / "boxes"
        assert not boxes.is_dir() or not list(boxes.iterdir()), "a box was left behind"
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def own_register(tmp_path: Path, routes: Path) -> Callable[[str, dict[str, str]], Path]:
    """A folder of registers with the given egress entries, and the scripts named, by stem and source."""

    def make(entries: str, scripts: dict[str, str]) -> Path:
        folder = tmp_path / "routes"
        for name in ("egress", "local"):
            (folder / name).mkdir(parents=True)
            (folder / name / "routes.toml").write_text(entries if name == "egress" else "")
        shutil.copytree(routes / "egress" / "policies", folder / "egress" / "policies")
        for stem, source in scripts.items():
            (folder / "egress" / f"{stem}.py").write_text(source)
        for path in (tmp_path, folder, *folder.rglob("*")):
            path.chmod(0o755)
        for path in tmp_path.parents:
            if path.stat().st_uid == os.geteuid() and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o111)
            if path.name.startswith("pytest-of-"):
                break
        return folder

    return make
