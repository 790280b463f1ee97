"""The catalogue is whole, its rows are compared with what they gave, and docs/cheats.md says what it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from caisson_runner.boxes.errors import ToolMissing, UserNamespacesUnavailable
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Store
from caisson_runner.catalogue import differences, matrix, row_ids
from caisson_runner.report.catalogue import page
from caisson_runner.results import FoundFinding, Result, SharedSlot
from caisson_runner.run import run_one
from caisson_runner.session import Session
from caisson_runner.suite import plan
from caisson_runner.tasks import Scenario, SuiteMalformed, load_catalogue, load_suite
from caisson_runner.verify.findings import shipped
from caisson_runner.witness import choose

ROOT = Path(__file__).parents[2]
SUITE = load_suite("cheats")
EXPERIMENT = SUITE.experiments[0]


def scenario(name: str) -> Scenario:
    found = EXPERIMENT.scenario(name)
    assert found is not None
    return found


def result(row: Scenario, **fields: object) -> Result:
    base = Result(row_ids(row)[0], row.task, row.id, True, row.verdict, row.trusting == "pass", False, False, False, "",
                  1, 0.1, "ebpf", "", Path("x"),
                  findings=tuple(FoundFinding(rule, "warn", (1,)) for rule in (*row.findings, *row.ebpf)))  # fmt: skip
    return replace(base, **fields)  # type: ignore[arg-type]


def test_every_scenario_loads_with_its_task_and_its_agents() -> None:
    SUITE.check()
    assert len(EXPERIMENT.scenarios) >= 120
    assert len({s.id for s in EXPERIMENT.scenarios} | {r.id for r in EXPERIMENT.left_out}) >= 123


def test_scenarios_name_findings_that_exist_and_nothing_of_ours() -> None:
    rules = {rule.id for rule in shipped().rules}
    for row in EXPERIMENT.scenarios:
        assert set(row.findings) | set(row.ebpf) <= rules, row.id
        assert "caisson_" not in row.script


def test_every_group_has_what_its_kind_demands() -> None:
    for row in EXPERIMENT.scenarios:
        if row.kind == "honest":
            assert row.verdict == "pass", row.id
        if row.kind == "cheat":
            assert row.verdict in ("fail", "void"), row.id


def test_a_row_that_differs_is_named_and_one_that_does_not_is_silent() -> None:
    row = scenario("conftest-report-hook")
    name = row_ids(row)[0]
    assert differences(row, {name: result(row)}) == []
    said = differences(row, {name: result(row, word="pass", trusting=False, findings=())})
    assert [line.split(",")[0] for line in said[:2]] == ["the trusting harness says fail", "the verdict is pass"]
    assert said[2] == "no finding test-config"
    assert "← not as expected" in str(matrix(EXPERIMENT, {name: result(row, word="pass")}).rows)


def test_an_honest_control_with_anything_above_a_remark_differs() -> None:
    row = scenario("root-owned-output")
    loud = result(row, findings=(FoundFinding("autorun", "warn"),))
    quiet = result(row, findings=(FoundFinding("test-config", "info"),))
    assert differences(row, {row_ids(row)[0]: loud}) == ["honest work raises autorun"]
    assert differences(row, {row_ids(row)[0]: quiet}) == []


def test_what_only_ebpf_supports_is_not_asked_of_strace() -> None:
    row = scenario("userns-overlay")
    name = row_ids(row)[0]
    assert differences(row, {name: result(row, findings=())}) == ["no finding sandbox-probed"]
    assert differences(row, {name: result(row, findings=(), witness="strace")}) == []
    assert "eBPF can" in " ".join(matrix(EXPERIMENT, {name: result(row, findings=(), witness="strace")}).notes)


def test_residue_is_judged_by_the_next_task_in_one_box_and_in_a_fork() -> None:
    row = scenario("residue-shell-profile")
    own, shared, after = row_ids(row)
    slots = (SharedSlot(0, row.id, True, False), SharedSlot(1, row.later, False, False))
    runs = {own: result(row), shared: result(row, shared=slots), after: result(row, word="pass")}
    assert differences(row, runs) == []
    assert matrix(EXPERIMENT, runs).rows[0][1:3] == ("then fail", "then pass")
    spread = runs | {after: result(row, word="fail")}
    assert "honest-fix in a fresh fork: fail, expected pass" in differences(row, spread)[0]


def test_a_row_whose_tools_are_missing_is_not_planned_but_told() -> None:
    row = replace(scenario("os-exit-zero"), needs=("/no/such/tool",))
    experiment = replace(EXPERIMENT, scenarios=(row,))
    assert plan(replace(SUITE, experiments=(experiment,))) == []
    assert "not run here: os-exit-zero (no /no/such/tool)" in matrix(experiment, {}).notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema: is required"),
        ('harness = "none"\n', "no harness 'none'"),
        ('expected = { verdict = "passed" }\n', "verdict"),
        ("expected = { trusting = 'pass' }\n", "verdict: is required"),
        ('later = "noop"\nexpected = { verdict = "fail" }\n', "goes with expected.shared"),
        ('expected = { verdict = "fail" }\nwhatt = 1\n', "unknown key"),
    ],
)
def test_a_malformed_catalogue_is_named_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    head = 'schema = "caisson.scenarios/v1"\ngroup = "X"\ntitle = "t"\ntask = "add-mul"\n[[scenarios]]\nid = "a"\n'
    body = 'what = "w"\nsource = "s"\nrun = "true"\n'
    file = tmp_path / "x.toml"
    file.write_text(head + body + text if text else "group = 'X'\n")
    with pytest.raises(SuiteMalformed) as caught:
        load_catalogue(file)
    assert said in str(caught.value)


def test_the_page_of_the_catalogue_is_what_the_data_says() -> None:
    assert (ROOT / "docs/cheats.md").read_text() == page(EXPERIMENT), "run: make cheats-page"


SOME = ("conftest-report-hook", "trojan-python", "reward-json-loop", "git-log-all", "copy-reference",
        "witness-hardlink-alias", "own-conftest", "honest-git-log")  # fmt: skip


async def test_a_few_rows_of_each_group_hold_here(tmp_path: Path) -> None:
    """Real boxes and the best witness this user has without a daemon; the whole matrix is `make cheats`."""
    tmp_path.chmod(0o755)
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(LocalEngine(Store(tmp_path / "store")))
            witness = choose("strace")
            session = Session(engine, witness, {}, stack)
            for name in SOME:
                row = scenario(name)
                if row.missing:
                    continue
                task, agents = SUITE.resolve("cheats", row.task, (name,))
                run_id = row_ids(row)[0]
                made = await run_one(session, task, agents[0], run_id, tmp_path / run_id, 7)
                assert differences(row, {run_id: made}) == [], name
        except (ToolMissing, UserNamespacesUnavailable) as missing:
            pytest.skip(str(missing))
