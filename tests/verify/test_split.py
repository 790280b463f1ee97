"""Tests and what they test in two rooms: what is wrong fails there, honest work passes, the unsplittable is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from caisson_runner.boxes.engine import Change
from caisson_runner.boxes.errors import ToolMissing, UserNamespacesUnavailable
from caisson_runner.tasks import load_task
from caisson_runner.verify.rooms.values import decode, encode
from caisson_runner.verify.split import Told, judge_split, modules
from verify_rig import Bench, bench, run

TASK = load_task("harbor-only")


def written(path: str, how: str = "added") -> Change:
    return Change(path.encode(), how, "file")  # type: ignore[arg-type]


def test_modules_are_what_the_agent_wrote_where_tests_look_and_nothing_of_pythons() -> None:
    changes = [written("app/impl.py", "changed"), written("app/pkg/deep/x.py"), written("app/src/two.py"),
               written("app/json.py"), written("app/conftest.py"), written("app/notes.txt"), written("tmp/other.py"),
               written("app/gone.py", "removed"), written("app/fast.so")]  # fmt: skip
    assert modules(TASK, changes) == ("impl", "pkg", "two")


@pytest.mark.parametrize(
    "value",
    [None, True, 5, -(10**30), 1.5, float("inf"), "text", "\ud800", b"\0\xff", (1, [2, {3: {4}}]), frozenset("a"), 2j,
     {(1, 2): "k"}],
    ids=repr,
)  # fmt: skip
def test_plain_values_cross_with_their_types(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_a_subclass_arrives_as_its_base_and_an_object_does_not_arrive() -> None:
    class Lie(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert decode(encode(Lie(7))) != 5
    with pytest.raises(TypeError):
        encode(object())


def told(complete: bool = True, **outcomes: str) -> Told:
    return Told({name: frozenset({outcome}) for name, outcome in outcomes.items()}, complete)


def test_only_tests_that_the_solution_passes_count() -> None:
    check = judge_split(told(a="passed", b="unsplit"), frozenset({"a"}))
    assert check is not None
    assert check.passed is True
    assert judge_split(told(a="passed"), frozenset()) is None


def test_a_test_that_is_not_reported_or_not_reached_is_not_passed() -> None:
    for seen in (told(b="passed"), told(a="passed", complete=False), told(a="unsplit"), told(a="failed")):
        check = judge_split(seen, frozenset({"a"}))
        assert check is not None
        assert check.passed is False


def test_without_a_solution_what_cannot_be_split_decides_nothing() -> None:
    check = judge_split(told(a="unsplit", b="failed"), None)
    assert check is not None
    assert check.passed is None


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def harbor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = Path(tmp_path_factory.mktemp("split"))
    folder.chmod(0o755)
    try:
        async with bench(TASK, folder) as made:
            yield made
    except (ToolMissing, UserNamespacesUnavailable) as missing:
        pytest.skip(str(missing))


@pytest.mark.asyncio(loop_scope="module")
async def test_the_solution_and_honest_work_pass_in_both_views(harbor: Bench) -> None:
    ran = await run(harbor, "oracle")
    assert ran.verdict.word == "pass", ran.verdict.reason
    assert ran.grades.split is not None
    assert ran.grades.split.passed is True
    assert len(ran.grades.split.cases) == 4  # the fifth wants isinstance() of an object that stays away


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "source",
    ["import os; os._exit(0)", "raise SystemExit(0)", "import os, signal; os.kill(os.getppid(), 9)",
     "class Counter:\n    pass\ndef add(a, b):\n    return type('E', (int,), {'__eq__': lambda *a: True})()"],
    ids=["os-exit", "system-exit", "kill", "equal-int"],
)  # fmt: skip
async def test_no_trick_in_one_process_passes_when_it_is_two(harbor: Bench, source: str) -> None:
    ran = await run(harbor, ["/bin/sh", "-c", f"cat > impl.py <<'END'\n{source}\nEND"])
    assert ran.verdict.word == "fail", ran.verdict.reason
