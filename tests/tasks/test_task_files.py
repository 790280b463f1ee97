"""A Harbor task directory is read as Harbor reads it, and what cannot be done is refused by name."""

from pathlib import Path

import pytest
from caisson_runner.tasks import TaskMalformed, TaskNotFound, UnsupportedTask, load_task

INSTRUCTION = "Do it.\n"


def make(root: Path, toml: str = "", caisson: str | None = None, dockerfile: str | None = None) -> Path:
    task = root / "some-task"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(toml)
    (task / "instruction.md").write_text(INSTRUCTION)
    (task / "tests" / "test.sh").write_text("#!/bin/sh\n")
    (task / "environment" / "data.txt").write_text("data\n")
    if caisson is not None:
        (task / "caisson.toml").write_text(caisson)
    if dockerfile is not None:
        (task / "environment" / "Dockerfile").write_text(dockerfile)
    return task


def test_defaults_are_harbors(tmp_path: Path) -> None:
    task = load_task(make(tmp_path))
    assert task.harbor.verifier_timeout_s == 600
    assert task.harbor.build_timeout_s == 600
    assert task.agent_timeout_s is None
    assert task.workdir == "/app"
    assert task.harbor.network_mode == "public"
    assert task.harbor_role == "ground_truth"
    assert not task.has_held_out


def test_loose_files_of_the_environment_go_to_the_workdir(tmp_path: Path) -> None:
    task = load_task(make(tmp_path, '[environment]\nworkdir = "/srv/work"\n'))
    assert list(task.files()) == ["/srv/work/data.txt"]


def test_unknown_keys_are_kept_and_warned_about(tmp_path: Path) -> None:
    task = load_task(make(tmp_path, 'colour = "red"\n[environment]\nsmell = 1\n[metadata]\nanything = ["goes"]\n'))
    assert task.harbor.unknown == {"colour": "red"}
    assert task.harbor.metadata == {"anything": ["goes"]}
    assert any("environment.smell" in warning for warning in task.warnings)
    assert any("colour" in warning for warning in task.warnings)


@pytest.mark.parametrize(
    ("toml", "size"),
    [
        ('memory = "2G"', 2048),
        ('memory = "512M"', 512),
        ('memory = "2048K"', 2),
        ('memory = "1.5G"', 1536),
        ("memory_mb = 77", 77),
    ],
)
def test_memory_is_read_in_both_spellings(tmp_path: Path, toml: str, size: int) -> None:
    assert load_task(make(tmp_path, f"[environment]\n{toml}\n")).harbor.memory_mb == size


def test_legacy_names_are_understood(tmp_path: Path) -> None:
    task = load_task(make(tmp_path, 'version = "1.0"\n[environment]\nallow_internet = false\nstorage = "10G"\n'))
    assert task.harbor.network_mode == "no-network"
    assert task.harbor.storage_mb == 10240
    assert task.warnings == ()


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[agent]\ntimeout_sec = 'long'\n", ":2: agent.timeout_sec: must be a number, is a string"),
        ("[agent]\ntimeout_sec = true\n", "agent.timeout_sec: must be a number, is true/false"),
        ("[agent]\ntimeout_sec = -1\n", "more than 0"),
        ("[agent]\ntimeout_sec = nan\n", "must be finite"),
        ("[verifier]\nenv = { A = 1 }\n", "verifier.env.A: must be a string"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 1\n", ":2: environment.memory: conflicts with memory_mb"),
        ("[environment]\nmemory = '2 elephants'\n", "must be a size such as 2G"),
        ("[environment]\nnetwork_mode = 'open'\n", "must be one of public"),
        ("[environment]\nallowed_hosts = ['a.test']\n", "needs network_mode"),
        ("[environment]\nworkdir = 'app'\n", "must be an absolute path"),
        ("[environment]\nos = 'plan9'\n", "must be linux or windows"),
        ("[task]\nname = 'noslash'\n", 'must read "org/name"'),
        ("[task]\n", "task.name: is required"),
        ("artifacts = ['../x']\n", "without '..'"),
        ("schema_version = '2.0'\n", "must be a 1.x version"),
        ("[environment\n", ":1: not TOML"),
        ("agent = 3\n", "agent: must be a table"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, toml: str, said: str) -> None:
    task = make(tmp_path, toml)
    with pytest.raises(TaskMalformed) as caught:
        load_task(task)
    assert str(caught.value).startswith(str(task / "task.toml"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[[steps]]\nname = 'one'\n", "multi-step"),
        ("[environment]\nos = 'Windows'\n", "windows"),
        ("[environment]\ngpus = 1\n", "GPU"),
        ("[environment]\ntpu = { type = 'v4' }\n", "TPU"),
        ("[[environment.mcp_servers]]\nname = 'x'\n", "MCP"),
        ("[environment]\nskills_dir = 'skills'\n", "skills"),
        ("[environment]\nhealthcheck = { command = 'true' }\n", "healthcheck"),
        ("[verifier.environment]\ndocker_image = 'x'\n", "own verifier images"),
        ("[[verifier.collect]]\ncommand = 'x'\n", "collect hooks"),
        ("[agent]\nuser = 'nobody'\n", "only root"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(UnsupportedTask, match=said) as caught:
        load_task(make(tmp_path, toml))
    assert caught.value.exit_code == 2


def test_compose_and_verifier_images_are_refused(tmp_path: Path) -> None:
    task = make(tmp_path)
    (task / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(UnsupportedTask, match="multi-container"):
        load_task(task)
    (task / "environment" / "docker-compose.yaml").unlink()
    (task / "tests" / "Dockerfile").write_text("FROM x\n")
    with pytest.raises(UnsupportedTask, match="verifier images"):
        load_task(task)


def test_verifier_environment_takes_the_hosts_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caisson_runner.tasks.harbor import resolve, resolve_env

    monkeypatch.setenv("CAISSON_TEST_SET", "yes")
    monkeypatch.delenv("CAISSON_TEST_UNSET", raising=False)
    assert resolve("a${CAISSON_TEST_SET}b${CAISSON_TEST_UNSET:-default}") == "ayesbdefault"
    assert resolve("$CAISSON_TEST_SET ${not a name}") == "$CAISSON_TEST_SET ${not a name}"
    with pytest.raises(TaskMalformed, match=r"verifier.env.KEY: \$\{CAISSON_TEST_UNSET\} is not set"):
        resolve_env({"KEY": "${CAISSON_TEST_UNSET}"}, tmp_path / "task.toml", "verifier.env")


def test_a_task_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFound, match="did you mean add-mul"):
        load_task("ad-mul")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskNotFound, match=r"no task\.toml"):
        load_task(tmp_path / "empty")


def test_a_task_without_any_check_is_malformed(tmp_path: Path) -> None:
    task = make(tmp_path)
    (task / "tests" / "test.sh").unlink()
    with pytest.raises(TaskMalformed, match=r"test\.sh: is missing"):
        load_task(task)


def test_links_that_leave_the_task_are_refused(tmp_path: Path) -> None:
    task = make(tmp_path)
    (task / "environment" / "secret").symlink_to("/etc/passwd")
    with pytest.raises(TaskMalformed, match="leaves the task directory"):
        load_task(task)


DOCKERFILE = """# comment
FROM ubuntu:24.04 AS base
WORKDIR /srv
ENV A=1 B="two words"
COPY data.txt sub/ \\
  ./
COPY ["data.txt", "/else/where.txt"]
LABEL a=b
RUN echo $A > made
"""


def test_the_dockerfile_subset_becomes_a_recipe(tmp_path: Path) -> None:
    task_dir = make(tmp_path, dockerfile=DOCKERFILE)
    (task_dir / "environment" / "sub").mkdir()
    (task_dir / "environment" / "sub" / "inner.txt").write_text("x")
    task = load_task(task_dir)
    assert task.recipe is not None
    assert task.workdir == "/srv"
    assert dict(task.recipe.env) == {"A": "1", "B": "two words"}
    assert sorted(task.files()) == ["/else/where.txt", "/srv/data.txt", "/srv/inner.txt"]
    assert task.recipe.runs == ("mkdir -p /srv && cd /srv && export A=1; export B='two words'; echo $A > made",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM x\nUSER nobody\n", ":2: USER: not supported"),
        ("FROM x\nENTRYPOINT ['a']\n", ":2: ENTRYPOINT"),
        ("ARG A\nFROM x\n", ":1: ARG: instructions before FROM"),
        ("FROM a\nFROM b\n", ":2: FROM: multi-stage"),
        ("FROM --platform=x a\n", "only FROM IMAGE"),
        ("FROM x\nCOPY --from=y a b\n", ":2: COPY --from=y"),
        ("FROM x\nRUN true\nCOPY data.txt .\n", ":3: COPY after RUN"),
        ("FROM x\nRUN --mount=type=cache true\n", ":2: RUN --mount=type=cache"),
        ("FROM x\nADD data.txt /\n", ":2: ADD"),
        ("FROM x\nHEALTHCHECK NONE\n", ":2: HEALTHCHECK"),
    ],
)
def test_other_instructions_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UnsupportedTask) as caught:
        load_task(make(tmp_path, dockerfile=text))
    assert said in str(caught.value)


@pytest.mark.parametrize("source", ["../task.toml", "missing.txt", "sub/../../x"])
def test_copy_stays_inside_the_build_context(tmp_path: Path, source: str) -> None:
    with pytest.raises(TaskMalformed, match="COPY"):
        load_task(make(tmp_path, dockerfile=f"FROM x\nCOPY {source} /x\n"))


def test_an_image_needs_a_base(tmp_path: Path) -> None:
    task = load_task(make(tmp_path, dockerfile="FROM ubuntu:24.04\n"))
    with pytest.raises(UnsupportedTask, match=r"FROM ubuntu:24.04: no base is mapped"):
        task.base({})
    assert task.base({"ubuntu:24.04": "host"}) == "host"


CAISSON = 'schema = "caisson.task/v1"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('schema = "caisson.task/v2"\n', "schema: must be 'caisson.task/v1'"),
        ("", "schema: is required"),
        (CAISSON + "deliverable = ['x']\n", ":2: deliverable: unknown key; did you mean deliverables?"),
        (CAISSON + "deliverables = ['/x']\n", "relative to the workspace"),
        (CAISSON + "[trusting]\nclaim = ['pass']\n", "trusting.command"),
        (CAISSON + "[trusting]\ncommand = ['x']\nclam = []\n", ":4: trusting.clam: unknown key; did you mean claim?"),
        (CAISSON + "[subject]\nmodule = 'x'\nfunctions = ['y']\n", "need each other"),
        (CAISSON + "[examiner]\nfile = 'nope/x.py'\n[subject]\nmodule = 'x'\nfunctions = ['y']\n", "no file"),
        (CAISSON + "[examiner]\nfile = '../x.py'\n[subject]\nmodule = 'x'\nfunctions = ['y']\n", "leaves the task"),
        (CAISSON + "[[scripts]]\nname = 'a'\ntests = 'tests'\nexpected = 'none'\n", "scripts[0].expected: no file"),
        (CAISSON + "[restore]\npaths = ['usr']\n", "absolute"),
        (CAISSON + "harbor_verifier = 'maybe'\n", "must be one of"),
    ],
)
def test_caisson_toml_is_strict(tmp_path: Path, text: str, said: str) -> None:
    task = make(tmp_path, caisson=text)
    with pytest.raises(TaskMalformed) as caught:
        load_task(task)
    assert str(caught.value).startswith(str(task / "caisson.toml"))
    assert said in str(caught.value)


def test_neither_tests_nor_solution_nor_examiner_go_into_the_snapshot() -> None:
    task = load_task("add-mul")
    assert sorted(task.files()) == ["/app/impl.py", "/app/test_impl.py"]
    assert task.has_held_out
    assert task.harbor_role == "none"


def test_a_dockerfiles_path_keeps_the_boxs_own_and_blank_lines_end_nothing(tmp_path: Path) -> None:
    text = "FROM x\nENV PATH=/opt/bin:$PATH\nRUN one \\\n\n  && two\n"
    recipe = load_task(make(tmp_path, dockerfile=text)).recipe
    assert recipe is not None
    assert recipe.env["PATH"].startswith("/opt/bin:/usr/local/sbin:")
    assert recipe.runs[0].split(";")[-1].split() == ["one", "&&", "two"]


@pytest.mark.parametrize("run", ['["a"', "[1]", "[]", '["a", 2]', "[{}]"])
def test_a_run_that_is_no_list_of_words_is_named_with_its_line(tmp_path: Path, run: str) -> None:
    with pytest.raises(TaskMalformed, match=r"Dockerfile:2: RUN"):
        load_task(make(tmp_path, dockerfile=f"FROM x\nRUN {run}\n"))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("../../outside", "leaves the task directory"),
        ("../tests/test.sh", "leaves environment/"),
        ("../tests", "leaves environment/"),
        ("link", "in a circle"),
        ("folder", "not supported in environment/"),
        ("nowhere", "not supported in environment/"),
    ],
)
def test_a_link_shows_the_agent_nothing_and_vanishes_in_silence_nowhere(tmp_path: Path, target: str, said: str) -> None:
    task = make(tmp_path)
    (task / "environment" / "folder").mkdir(parents=True)
    (task / "environment" / "link").symlink_to(target)
    with pytest.raises((TaskMalformed, UnsupportedTask), match=said):
        load_task(task)


def test_a_link_to_a_file_of_the_environment_is_that_file(tmp_path: Path) -> None:
    task = make(tmp_path)
    (task / "environment").mkdir(exist_ok=True)
    (task / "environment" / "real.txt").write_text("x")
    (task / "environment" / "link.txt").symlink_to("real.txt")
    assert "/app/link.txt" in load_task(task).files()
