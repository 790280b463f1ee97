"""`caisson-run stats`: from whole bundles on disk to numbers, and what is left out of them is said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.bundle import BundleWriter
from caisson_runner.bundle.keys import Signer
from caisson_runner.cli import cli
from caisson_runner.outcomes import NoResults, read_outcomes
from click.testing import CliRunner, Result

SIGNER = Signer.of(bytes(32))


def add(
    folder: Path,
    run: str,
    word: str = "pass",
    *,
    task: str = "t",
    agent: str = "a",
    state: str = "s",
    trusting: bool = True,
    checks: str = "c",
    **fields: Any,
) -> Path:
    """A run's bundle, with what statistics read of it."""
    place = fields.pop("place", "runs")
    target = folder / place / run
    target.parent.mkdir(parents=True, exist_ok=True)
    true = word in ("pass", "void")
    with BundleWriter(target, SIGNER) as writer:
        writer.add_json(
            "run.json",
            {
                "schema": "caisson.run/v1",
                "id": run,
                "task": {"id": task, "digest": checks},
                "agent": {"name": agent},
                "state": {"digest": state},
                "wall_s": 1.0,
                "witness": {"name": "none"},
                **fields,
            },
        )
        check = {"passed": None if word == "infra" else true}
        lie = trusting and not true and word != "infra"
        writer.add_json(
            "verdict.json",
            {"word": word, "lie": lie, "trusting": {"passed": trusting}, "ground_truth": check, "findings": []},
        )
        writer.add_json("coverage.json", {"complete": False})
    return target


def regrade(folder: Path, name: str, of: Path, word: str, checks: str = "c") -> None:
    manifest = hashlib.sha256((of / "manifest.json").read_bytes()).hexdigest()
    add(folder, name, word, checks=checks, place="regraded", derived_from={"manifest_sha256": manifest})


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["stats", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_rates_lies_and_attempts_are_counted_from_the_bundles(tmp_path: Path) -> None:
    for task, words in (("t", ("pass", "fail")), ("u", ("void", "fail"))):
        for at, word in enumerate(words):
            add(tmp_path, f"{task}{at}", word, task=task, state=f"{at}")
    (suite,) = document(tmp_path)["suites"]
    (group,) = suite["groups"]
    assert (group["solved"]["count"], group["true"]["count"], group["lies"]["count"]) == (1, 2, 2)
    assert [(one["k"], one["at_k"], one["hat_k"]) for one in group["attempts"]] == [(1, 0.25, 0.25), (2, 0.5, 0.0)]
    assert group["solved"]["clustered"]["clusters"] == 2
    assert {one["name"] for one in document(tmp_path, "--by", "task")["suites"][0]["groups"]} == {"t", "u"}
    shown = call(tmp_path).stdout
    assert "1/4 = 25 %" in shown and "pass^k" in shown and "Run to run" in shown


def test_runs_without_a_verdict_and_of_shared_boxes_are_left_out_and_told(tmp_path: Path) -> None:
    add(tmp_path, "one")
    add(tmp_path, "two", "infra")
    slot = {"slot": 0, "behaviour": "a", "is_poison": False, "passed": True}
    add(tmp_path, "three", shared_slots=[slot])
    outcomes = read_outcomes(tmp_path)
    assert (len(outcomes.attempts), outcomes.infra, outcomes.shared) == (1, 1, 1)
    shown = call(tmp_path).stdout
    assert "1 run(s) have no verdict" in shown and "several agents shared" in shown


def test_regrades_of_the_same_state_by_the_same_checks_part_the_harness_from_the_agent(tmp_path: Path) -> None:
    first, second = add(tmp_path, "one", state="1"), add(tmp_path, "two", "fail", state="2")
    for at in range(2):
        regrade(tmp_path, f"one-{at}", first, "pass")
        regrade(tmp_path, f"two-{at}", second, "fail")
    regrade(tmp_path, "other-checks", first, "fail", checks="d")
    outcomes = read_outcomes(tmp_path)
    assert [one.regraded for one in outcomes.attempts] == [(True, True), (False, False)]
    assert outcomes.other_checks == 1
    spread = document(tmp_path)["suites"][0]["whole"]["spread"]
    assert (spread["harness"], spread["agent"], spread["covered"], spread["gradings"]) == (0, 0.5, 1, 6)


def test_two_suites_are_paired_by_task(tmp_path: Path) -> None:
    for side, word in (("before", "fail"), ("after", "pass")):
        for task in "tuvwxyz":
            add(tmp_path / side, task, word, task=task, agent=side)
    found = document(tmp_path / "after", tmp_path / "before")["comparison"]
    assert (found["pairs"], found["only_a"], found["only_b"], found["p"]) == (7, 7, 0, 2 / 128)
    shown = call(tmp_path / "after", tmp_path / "before").stdout
    assert "7 / 0 / 0" in shown and "p = 0.0156: a difference" in shown


def test_two_agents_of_one_suite_are_compared(tmp_path: Path) -> None:
    for task in "tu":
        add(tmp_path, f"{task}a", task=task, agent="model-a")
        add(tmp_path, f"{task}b", "fail", task=task, agent="model-b")
    found = document(tmp_path, "--agent", "model-a", "--other-agent", "model-b")["comparison"]
    assert (found["pairs"], found["only_a"], found["best_case"]) == (2, 2, None)
    assert "no difference, at best" in call(tmp_path, "--agent", "*a", "--other-agent", "*b").stdout


def test_the_order_of_attempts_is_that_of_the_plan(tmp_path: Path) -> None:
    for run in ("b", "a", "c"):
        add(tmp_path, run)
    (tmp_path / "plan.json").write_text(json.dumps({"runs": [{"id": "c"}, {"id": "a"}, {"id": "b"}]}))
    assert [one.run for one in read_outcomes(tmp_path).attempts] == ["c", "a", "b"]


def test_nothing_to_count_is_the_callers_mistake(tmp_path: Path) -> None:
    add(tmp_path / "x", "one", task="t")
    add(tmp_path / "y", "one", task="u")
    add(tmp_path / "z", "one", "infra")
    (tmp_path / "x" / "runs" / "half.partial").mkdir()
    for arguments in (
        (tmp_path,),
        (tmp_path / "x", tmp_path / "y"),
        (tmp_path / "z",),
        (tmp_path / "x", "--agent", "?b"),
    ):
        failed = call(*arguments).exception
        assert isinstance(failed, NoResults) and failed.exit_code == 2, arguments
    assert "no run in it is of that agent" in str(call(tmp_path / "x", "--agent", "?b").exception)
    (tmp_path / "x" / "runs" / "one" / "verdict.json").write_text("{}")
    with pytest.raises(NoResults, match="cannot be read"):
        read_outcomes(tmp_path / "x")
