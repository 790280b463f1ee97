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
from caisson_runner.verify.split import EVERYTHING, Told, judge_split, loadable, modules
from verify_rig import Bench, bench, run

TASK = load_task("harbor-only")


def written(path: str, how: str = "added") -> Change:
    return Change(path.encode(), how, "file")  # type: ignore[arg-type]


def test_modules_are_what_the_agent_wrote_where_tests_look_and_nothing_of_pythons() -> None:
    changes = [written("app/impl.py", "changed"), written("app/pkg/deep/x.py"), written("app/src/two.py"),
               written("app/json.py"), written("app/conftest.py"), written("app/notes.txt"), written("tmp/other.py"),
               written("app/gone.py", "removed"), written("app/fast.so")]  # fmt: skip
    assert modules(TASK, changes) == ("impl", "pkg", "two")


def test_no_number_of_files_hides_one() -> None:
    many = [written(f"app/f{number}.py") for number in range(5001)]
    assert loadable(many) == EVERYTHING
    assert loadable([Change(b"app/\xff.py", "added", "file")]) == EVERYTHING
    assert loadable(many[:2]) == ("/app/f0.py", "/app/f1.py")


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


LOADS = """
import importlib.util, json, pickle, subprocess
from impl import add

def load(path):
    spec = importlib.util.spec_from_file_location("other", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def test_by_file():
    assert load("/app/impl.py").add(2, 3) == 5

def test_by_path(monkeypatch):
    monkeypatch.syspath_prepend("/app/deep/er")
    import hidden
    assert hidden.add(2, 3) == 5

def test_pickle():
    with open("/app/data.pkl", "rb") as file:
        assert pickle.load(file) == [1, 2]

def test_child():
    said = subprocess.run(["python3", "-c", "import impl; print(impl.add(2, 3))"], cwd="/app", capture_output=True)
    assert said.stdout == b"5\\n"

def test_plain():
    assert add(2, 3) == 5
"""
SOLVE = """#!/bin/sh
mkdir -p deep/er
echo 'def add(a, b): return a + b' | tee impl.py deep/er/hidden.py
python3 -c 'import pickle; pickle.dump([1, 2], open("data.pkl", "wb"))'
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_no_way_to_load_the_agents_code_leads_into_the_tests_process(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name, text in {
        "task/task.toml": "",
        "task/instruction.md": "Add.",
        "task/environment/impl.py": "def add(a, b):\n    return a - b\n",
        "task/tests/test_loads.py": LOADS,
        "task/tests/test.sh": "#!/bin/sh\ncd /app\npython3 -m pytest -q /tests >&2; "
        "if [ $? = 0 ]; then echo 1; else echo 0; fi > /tmp/r; cp /tmp/r /logs/verifier/reward.txt\n",
        "task/solution/solve.sh": SOLVE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    try:
        async with bench(load_task(tmp_path / "task"), tmp_path) as made:
            ran = await run(made, "oracle")
            assert ran.verdict.word == "pass", ran.verdict.reason
            assert ran.grades.split is not None
            splittable = {case.call.rpartition("::")[2] for case in ran.grades.split.cases}
            assert splittable == {"test_pickle", "test_child", "test_plain"}
            trick = (
                SOLVE + 'python3 -c \'import os, pickle; E = type("E", (), {"__reduce__": lambda s: (os._exit, (0,))});'
            )
            trick += ' E.__module__, E.__qualname__ = "__main__", "E"; pickle.dump(E(), open("data.pkl", "wb"))\''
            cheat = await run(made, ["/bin/sh", "-c", trick])
            assert cheat.verdict.word == "fail", cheat.verdict.reason
            assert cheat.verdict.trusting is not None
            assert cheat.verdict.trusting.passed is True
    except (ToolMissing, UserNamespacesUnavailable) as missing:
        pytest.skip(str(missing))
