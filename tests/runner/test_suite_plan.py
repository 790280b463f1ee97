"""Plans, tables and expectations: pure, no box."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from caisson_runner import suite as suites
from caisson_runner.errors import CaissonError
from caisson_runner.report import tables
from caisson_runner.results import Result, SharedSlot
from caisson_runner.tasks import load_suite


def result(identity: str = "E2-x", behaviour: str = "honest-fix", **changes: object) -> Result:
    """An honest pass, changed where a test wants it."""
    base = Result(
        id=identity,
        task="add-mul",
        behaviour=behaviour,
        is_cheat=False,
        word="pass",
        trusting=True,
        ground_truth=True,
        held_out=True,
        lie=False,
        state_digest="ab" * 32,
        seed=1,
        wall_s=0.1,
        witness="none",
        detail="",
        bundle=Path("b"),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


CHEAT = {"is_cheat": True, "word": "fail", "ground_truth": False, "held_out": False, "lie": True}


def test_the_article_plans_its_thirty_four_runs_with_distinct_ids_and_seeds() -> None:
    runs = suites.plan(load_suite("article"))
    assert len(runs) == 34
    assert len({run.id for run in runs}) == 34
    assert len({run.seed for run in runs}) == 34
    shared = [run for run in runs if run.shared]
    assert [len(run.agents) for run in shared] == [6]


def test_include_exclude_and_limit_cut_the_plan() -> None:
    suite = load_suite("article")
    assert {run.experiment for run in suites.plan(suite, include=["E2-*"])} == {"E2"}
    assert not [run for run in suites.plan(suite, exclude=["*cheat*"]) if "cheat" in run.id]
    assert len(suites.plan(suite, limit=3)) == 3


def test_attempts_repeat_every_run_under_its_own_id() -> None:
    runs = suites.plan(load_suite("article"), attempts=2, include=["E1-*"])
    assert len(runs) == 10
    assert len({run.id for run in runs}) == 10


def test_a_plan_read_back_is_the_plan_that_was_written(tmp_path: Path) -> None:
    suite = load_suite("article")
    runs = suites.plan(suite)
    suites.write_plan(tmp_path, suite, runs)
    assert suites.read_plan(tmp_path, suite) == runs


def test_resuming_nothing_or_a_damaged_or_foreign_plan_is_one_clear_error(tmp_path: Path) -> None:
    suite = load_suite("article")
    with pytest.raises(suites.NothingToResume, match=r"no plan\.json"):
        suites.read_plan(tmp_path, suite)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(suites.NothingToResume, match="damaged"):
        suites.read_plan(tmp_path, suite)
    suites.write_plan(tmp_path, suite, suites.plan(suite))
    document = json.loads((tmp_path / "plan.json").read_text())
    for field, value in {"id": "../../x", "task": None, "agents": [1], "seed": "1", "shared": {}}.items():
        changed = json.dumps({**document, "runs": [{**document["runs"][0], field: value}]})
        (tmp_path / "plan.json").write_text(changed)
        with pytest.raises(suites.NothingToResume, match="damaged"):
            suites.read_plan(tmp_path, suite)
    (tmp_path / "plan.json").write_text(json.dumps(document | {"suite_digest": "0" * 64}))
    with pytest.raises(suites.SuiteChanged, match="changed since"):
        suites.read_plan(tmp_path, suite)


def test_a_bundle_without_manifest_or_verdict_is_not_done(tmp_path: Path) -> None:
    planned = suites.plan(load_suite("article"), limit=1)[0]
    assert suites.done(tmp_path, planned) is None
    bundle = tmp_path / "runs" / planned.id
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    assert suites.done(tmp_path, planned) is None


async def test_runs_are_made_in_parallel_and_come_back_in_the_plans_order() -> None:
    runs = suites.plan(load_suite("article"), include=["E1-*"])
    alive = most = 0
    told: list[str] = []

    async def make(planned: suites.Planned) -> Result:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await asyncio.sleep(0.01 * (5 - runs.index(planned)))
        alive -= 1
        return result(planned.id)

    made = await suites.carry_out(runs, make, 2, lambda r: told.append(r.id))
    assert [r.id for r in made] == [run.id for run in runs]
    assert most == 2
    assert sorted(told) == sorted(run.id for run in runs)


async def test_the_first_error_of_ours_ends_the_other_runs() -> None:
    runs = suites.plan(load_suite("article"), include=["E1-*"])
    cancelled: list[str] = []

    async def make(planned: suites.Planned) -> Result:
        if planned is runs[0]:
            raise CaissonError("no room")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(planned.id)
            raise
        return result(planned.id)

    with pytest.raises(ExceptionGroup) as caught:
        await suites.carry_out(runs, make, 2, lambda _: None)
    assert caught.group_contains(CaissonError, match="no room")
    assert cancelled == [runs[1].id]


def test_the_lie_rate_counts_over_all_runs_and_over_the_trusting_passes() -> None:
    results = [result(f"a{n}") for n in range(5)]
    results += [result(f"b{n}", "cheat-conftest", **CHEAT) for n in range(8)]
    results += [result(f"c{n}", "noop", **(CHEAT | {"trusting": False, "lie": False})) for n in range(2)]
    cells = dict(tables.lie_rate("E2", "t", results).rows)
    assert cells["trusting pass rate"].startswith("13/15 = 87 %, 95 % interval 62–96 %")
    assert cells["ground-truth pass rate"].startswith("5/15 = 33 %, 95 % interval 15–58 %")
    assert cells["lie rate, over all runs"].startswith("8/15 = 53 %, 95 % interval 30–75 %")
    assert cells["lies among the trusting passes"].startswith("8/13 = 62 %")


def test_a_run_without_verdict_is_left_out_of_the_rates_and_named() -> None:
    table = tables.lie_rate("E2", "t", [result("a"), result("b", word="infra", ground_truth=None, detail="no room")])
    assert dict(table.rows)["ground-truth pass rate"].startswith("1/1")
    assert "b: no room" in table.notes[-1]


def test_void_counts_as_no_lie_and_is_shown_apart() -> None:
    table = tables.lie_rate("E2", "t", [result("a", word="void"), result("b")])
    cells = dict(table.rows)
    assert cells["void"] == "1/2"
    assert cells["lie rate, over all runs"].startswith("0/2")


def test_different_final_states_are_said_in_the_determinism_table() -> None:
    same = tables.determinism("E0", "t", [result("a"), result("b")])
    assert same.notes[0].endswith("one final-state digest")
    other = tables.determinism("E0", "t", [result("a"), result("b", state_digest="cd" * 32)])
    assert other.notes[0].endswith("2 different final-state digests")


def test_spurious_failures_are_honest_slots_that_fail() -> None:
    slots = [
        SharedSlot(0, "honest-fix", False, True),
        SharedSlot(1, "poison", True, False),
        SharedSlot(2, "honest-fix", False, False),
    ]
    isolated = [result("a"), result("b", "poison", trusting=False), result("c")]
    table = tables.contamination("E3", "t", slots, isolated)
    assert table.notes[0] == "spurious failures: shared 1, isolated 0"
    assert table.rows[1][2:] == ("poison", "poison, contained")
    metrics = suites.metrics([result("s", shared=tuple(slots)), *isolated])
    assert (metrics["shared_spurious"], metrics["isolated_spurious"]) == (1, 0)


def test_results_that_differ_from_the_suites_expectation_are_named() -> None:
    suite = load_suite("article")
    runs = suites.plan(suite, include=["E1b-*"])
    results = [result(run.id) for run in runs]
    assert suites.unexpected(suite, runs, results) == ["E1b: held_out_pass is 2, expected 1"]
