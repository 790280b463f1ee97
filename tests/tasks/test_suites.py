"""Suites and behaviours are read strictly; what comes with Caisson is whole."""

from pathlib import Path

import pytest
from caisson_runner.tasks import SuiteMalformed, UnknownBehaviour, UnsupportedTask, load_suite, load_task, plan_agent
from caisson_runner.tasks.behaviour import behaviour_ids, load_behaviour

HEAD = 'schema = "caisson.suite/v1"\nname = "x"\ntasks = ["add-mul"]\n'
ONE = '[[experiments]]\nid = "A"\nkind = "lie_rate"\n[[experiments.runs]]\nagent = "noop"\n'


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "suite.toml"
    file.write_text(text)
    return file


def test_the_article_suite_is_the_articles() -> None:
    suite = load_suite("article")
    suite.check()
    by_id = {experiment.id: experiment for experiment in suite.experiments}
    assert list(by_id) == ["E0", "E1", "E1b", "E2", "E3"]
    assert len(by_id["E2"].agents()) == 15
    assert by_id["E3"].agents()[2] == "poison-usercustomize"


def test_every_behaviour_loads_and_imports_nothing_of_ours() -> None:
    for name in behaviour_ids():
        behaviour = load_behaviour(name)
        assert "caisson" not in (behaviour.directory / behaviour.script).read_text()
        assert behaviour.expected.verdict is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema: is required"),
        ('schema = "caisson.suite/v9"\n', "must be 'caisson.suite/v1'"),
        (HEAD, "experiments: a suite needs at least one"),
        (HEAD + ONE + "kinds = 1\n", ":9: experiments[0].runs[0].kinds: unknown key"),
        (HEAD + '[[experiments]]\nid = "A"\nkind = "lierate"\n', "did you mean lie_rate?"),
        (HEAD + '[[experiments]]\nid = "A"\nkind = "lie_rate"\n', "needs at least one [[experiments.runs]]"),
        (HEAD + ONE + "repeat = 0\n", "must be 1 or more"),
        (HEAD + ONE + "repeat = 'x'\n", "must be a whole number"),
        (HEAD + ONE + ONE, "same id"),
        (HEAD + ONE.replace('"A"', '"../A"'), ":5: experiments[0].id: must be 1 to 64 letters"),
        (HEAD.replace('"x"', '"a/b"') + ONE, ":2: name: must be 1 to 64 letters"),
        (HEAD + ONE + "[experiments.expected]\nliess = 1\n", "did you mean lies?"),
        (HEAD + 'made_by = "nope.py"\n' + ONE, "made_by: no file"),
        ("x = [1,\n", "not TOML"),
    ],
)
def test_a_malformed_suite_is_named_with_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SuiteMalformed) as caught:
        load_suite(file)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_suite_lists_what_there_is() -> None:
    with pytest.raises(SuiteMalformed, match=r"known are article, cheats, real; did you mean article\?"):
        load_suite("artikle")


def test_an_unknown_behaviour_names_its_neighbours(tmp_path: Path) -> None:
    suite = load_suite(write(tmp_path, HEAD + ONE.replace("noop", "honest-fixx")))
    with pytest.raises(UnknownBehaviour, match="did you mean honest-fix"):
        suite.check()
    for name in ("../honest-fix", "", "Honest", "."):
        with pytest.raises(UnknownBehaviour):
            load_behaviour(name)


def test_an_agent_is_a_name_or_a_command() -> None:
    task = load_task("add-mul")
    assert plan_agent("nop", task).argv == ("/bin/true",)
    oracle = plan_agent("oracle", task)
    assert oracle.binds == ((task.path / "solution", "/solution"),)
    assert plan_agent("echo hello", task).argv == ("/bin/sh", "-c", "echo hello")
    assert plan_agent(["python3", "x.py"], task).argv == ("python3", "x.py")
    behaviour = plan_agent("cheat-conftest", task)
    assert behaviour.argv == ("/bin/sh", "/agent/run.sh")
    assert behaviour.binds[0][1] == "/agent"


def test_no_solution_no_oracle(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("")
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "instruction.md").write_text("")
    with pytest.raises(UnsupportedTask, match="no oracle"):
        plan_agent("oracle", load_task(tmp_path))
