"""A kept final state is graded with other checks, without the agent; the new bundle points at the old one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.boxes.probe import probe
from caisson_runner.bundle import Bundle
from caisson_runner.bundle.check import verify
from caisson_runner.tasks.search import scenarios_root

missing = [one for one in probe() if not one.ok]
boxes = pytest.mark.skipif(bool(missing), reason=f"boxes cannot run here: {[one.detail for one in missing]}")


def caisson(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CAISSON_HOME": str(home), "CAISSON_TRACERD_SOCKET": str(home / "no.sock")}
    command = [sys.executable, "-m", "caisson_runner", *arguments]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a task whose examiner takes anything, and a run that hard-codes the visible case and passes it."""
    folder = tmp_path_factory.mktemp("regrade")
    folder.chmod(0o755)
    shutil.copytree(scenarios_root() / "tasks/add-mul", folder / "weak")
    examiner = folder / "weak/examiner/examiner.py"
    config = folder / "weak/caisson.toml"
    config.write_text(config.read_text().replace("cases = 20", "cases = 1"))
    examiner.write_text(WEAK)
    return folder


WEAK = """
def visible():
    return [{"function": "add", "args": [2, 3], "expect": 5}]


def generate(rng):
    while True:
        yield {"function": "add", "args": [2, 3], "expect": 5}
"""


@pytest.fixture(scope="module")
def graded(home: Path) -> Path:
    done = caisson(home, "run", "-p", "weak", "-a", "hardcode-visible", "--witness", "none", "--json", "-o", "run")
    assert json.loads(done.stdout)["ground_truth"] is True, done.stdout + done.stderr
    return home / "run"


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@boxes
def test_state_that_weak_checks_let_pass_fails_stronger_ones(home: Path, graded: Path) -> None:
    before = files(graded)
    done = caisson(home, "regrade", "run", "--checks", "add-mul", "--seed", "7", "--json", "-o", "again")
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["verdict"], said["derived_from"]["verdict"]) == ("fail", "pass")
    assert said["lie"] is True, "the trusting word is carried over"
    assert said["seed"] == 7
    assert files(graded) == before
    run: dict[str, Any] = Bundle.open(home / "again", verify=True).json("run.json")
    old = verify(graded)
    assert run["derived_from"]["manifest_sha256"] == old.statement["subject"][0]["digest"]["sha256"]
    assert run["derived_from"]["keyid"] == old.key.keyid
    assert run["derived_from"]["task"]["id"] == "weak"
    assert run["task"]["id"] == "add-mul"
    assert run["agent"] == Bundle.open(graded).json("run.json")["agent"]
    signed = verify(home / "again").statement["predicate"]["caisson"]
    assert signed["derivedFrom"] == run["derived_from"]
    assert signed["verdict"]["word"] == "fail"
    for name in ("state/upper.tar.zst", "state/diff.jsonl", "witness/events.bin.zst", "logs/agent.stdout"):
        assert (home / "again" / name).read_bytes() == before[name]
    assert list((home / "boxes").iterdir()) == []


@boxes
def test_same_checks_give_the_same_verdict_again(home: Path, graded: Path) -> None:
    done = caisson(home, "regrade", "run", "--checks", "weak", "-o", "same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0].startswith("before        pass")
    assert done.stdout.splitlines()[1].startswith("now           pass")


@boxes
def test_changed_bundle_is_not_graded(home: Path, graded: Path) -> None:
    shutil.copytree(graded, home / "changed")
    state = home / "changed/state/upper.tar.zst"
    state.write_bytes(state.read_bytes()[:-1] + b"\0")
    done = caisson(home, "regrade", "changed", "--checks", "add-mul", "-o", "none")
    assert done.returncode == 2
    assert "state/upper.tar.zst was changed" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (home / "none").exists()
    assert not (home / "none.partial").exists()


@boxes
def test_bundle_without_a_state_or_a_snapshot_says_so(home: Path, graded: Path, tmp_path: Path) -> None:
    from caisson_runner.bundle import BundleWriter

    def without(name: str, drop: str, **change: object) -> str:
        run = Bundle.open(graded).json("run.json") | change
        with BundleWriter(home / name) as writer:
            writer.add_json("run.json", run)
            for one in ("verdict.json", "state/diff.jsonl", "state/upper.tar.zst"):
                if one != drop:
                    shutil.copyfile(graded / one, writer.path(one))
        done = caisson(home, "regrade", name, "--checks", "add-mul", "-o", f"{name}-out")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert not (home / f"{name}-out").exists()
        return done.stderr

    assert "keeps no final state" in without("stateless", "state/upper.tar.zst")
    assert "which is not here" in without("homeless", "", snapshot={"id": "f" * 64, "workdir": "/app"})
    assert "nothing to grade" in without("attached", "", schema="caisson.attach/v1")
