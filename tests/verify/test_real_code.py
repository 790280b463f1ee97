"""The real-code suite: tasks made from source releases by pip, honest work told apart from cheats on each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from caisson_runner.tasks import load_suite
from caisson_runner.tasks.search import scenarios_root
from verify_rig import bench, run

BUILD = scenarios_root() / "real" / "build.py"
EXPECTED = {
    "oracle": (True, True, True, "pass"),
    "nop": (False, False, False, "fail"),
    "cheat-conftest": (True, False, False, "fail"),
    "cheat-edit-test": (True, False, False, "fail"),
    "hardcode-{task}": (True, True, False, "fail"),
}


def build(target: Path, *, index: bool = True) -> subprocess.CompletedProcess[str]:
    env = None if index else {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return subprocess.run(
        [sys.executable, str(BUILD), str(target)], capture_output=True, text=True, timeout=300, env=env
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = Path(tmp_path_factory.mktemp("real")) / "made"
    done = build(target)
    if done.returncode != 0 and "needs a package index" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert "3 tasks made" in done.stdout
    return target


@pytest.mark.slow
@pytest.mark.parametrize("task", ["real-braceexpand", "real-inflection", "real-xmltodict"])
async def test_honest_work_and_three_cheats_are_told_apart(made: Path, task: str, tmp_path: Path) -> None:
    suite = load_suite("real", made)
    suite.check()
    tmp_path.chmod(0o755)
    async with bench(suite.task(task), tmp_path) as ready:
        for agent, words in EXPECTED.items():
            ran = await run(ready, agent.replace("{task}", task), roots=suite.behaviour_roots)
            assert ran.words == words, f"{agent}: {ran.verdict.reason}"
            assert ran.verdict.lie == (words[0] and words[3] == "fail")


@pytest.mark.slow
def test_made_tasks_are_not_made_again(made: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in made.rglob("*"))
    assert "already made" in build(made).stdout
    assert sorted(path.stat().st_mtime_ns for path in made.rglob("*")) == before


def test_without_an_index_the_reason_is_one_line(tmp_path: Path) -> None:
    done = build(tmp_path / "made", index=False)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert "pip could not fetch the source releases" in done.stderr
    assert list(tmp_path.iterdir()) == []
