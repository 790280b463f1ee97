"""The command as people and CI call it: a real process, real boxes, exit codes and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from caisson_runner.boxes.probe import probe

missing = [r for r in probe() if not r.ok]
boxes = pytest.mark.skipif(bool(missing), reason=f"boxes cannot run here: {[r.detail for r in missing]}")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "CAISSON_HOME": str(home), "CAISSON_TRACERD_SOCKET": str(home / "no.sock")}


def caisson(home: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "caisson_runner", *arguments],
        env=environment(home), cwd=cwd or home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "caisson_runner", *arguments],
        env=environment(home), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    folder.chmod(0o755)
    return folder


def left_behind(home: Path) -> list[str]:
    """Processes, mounts and box folders that belong to a store."""
    found = [f"box {entry.name}" for entry in (home / "boxes").iterdir()] if (home / "boxes").is_dir() else []
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in command + environ and int(process.name) != os.getpid():
            found.append(f"process {process.name}: {command!r}")
    return found


def whole_bundles(home: Path) -> dict[str, int]:
    """Name and time of every bundle that has its name."""
    found = (home / "out" / "runs").glob("*/manifest.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in found if not path.parent.name.endswith(".partial")}


BAD_INPUT = [
    (("run", "-p", "no-such-task", "-a", "nop"), "no task 'no-such-task'"),
    (("run", "-p", "add-mul", "-a", "honest-fx"), "no behaviour 'honest-fx'"),
    (("run", "-p", "add-mul"), "say who the agent is"),
    (("run", "-p", "add-mul", "-a", "nop", "--base", "x"), "IMAGE=PATH"),
    (("suite", "no-such-suite"), "no such suite"),
    (("suite", "broken.toml"), "broken.toml:2"),
    (("suite", "article", "--resume"), "nothing to resume"),
    (("bundle", "show", "nowhere"), "is no bundle"),
    (("snapshot", "create"), "say what to make it from"),
    (("snapshot", "create", "--rootfs", "nowhere.tar"), "nowhere.tar"),
    (("snapshot", "prune", "abcdef"), "no snapshot 'abcdef'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUT, ids=[" ".join(a) for a, _ in BAD_INPUT])
def test_bad_input_is_one_clear_line_and_exit_code_two(home: Path, arguments: tuple[str, ...], says: str) -> None:
    (home / "broken.toml").write_text('schema = "caisson.suite/v1"\nname = = 3\n')
    done = caisson(home, *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_tracerd_that_is_down_is_one_clear_line_and_exit_code_three(home: Path) -> None:
    done = caisson(home, "run", "-p", "add-mul", "-a", "nop", "--witness", "ebpf")
    assert done.returncode == 3
    assert "no tracerd answers" in done.stderr
    assert done.stderr.count("\n") == 1


@boxes
@pytest.mark.parametrize(
    ("agent", "code", "verdict"), [("oracle", 0, "pass"), ("nop", 1, "fail"), ("cheat-conftest", 1, "fail")]
)
def test_the_exit_code_of_run_is_the_verdict(home: Path, agent: str, code: int, verdict: str) -> None:
    done = caisson(home, "run", "-p", "add-mul", "-a", agent, "--witness", "none", "--json", "-o", "out")
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == verdict
    assert caisson(home, "bundle", "verify", "out").returncode == 0
    assert left_behind(home) == []


@boxes
def test_right_work_beside_an_edited_test_is_void_and_exit_code_four(home: Path) -> None:
    right = "def add(a, b):\\n    return a + b\\ndef mul(a, b):\\n    return a * b\\n"
    script = f"printf '{right}' > impl.py; echo >> test_impl.py"
    done = caisson(home, "run", "-p", "add-mul", "--witness", "none", "-o", "out", "--", "sh", "-c", script)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "the visible tests were changed" in done.stdout


@boxes
def test_a_final_state_nobody_can_capture_is_the_agents_failure_not_ours(home: Path) -> None:
    deeper = "import os\nfor _ in range(300): os.mkdir('d' * 250); os.chdir('d' * 250)"
    done = caisson(home, "run", "-p", "add-mul", "--witness", "none", "--json", "--", "python3", "-c", deeper)
    assert done.returncode == 1, done.stderr
    assert "the final state cannot be graded" in json.loads(done.stdout)["detail"]
    assert left_behind(home) == []


@boxes
def test_any_command_is_an_agent_and_finds_its_instruction(home: Path) -> None:
    done = caisson(
        home, "run", "-p", "add-mul", "--witness", "none", "-o", "out", "--", "sh", "-c", "cat /instruction.md"
    )
    assert done.returncode == 1
    assert b"impl.py" in (home / "out" / "logs" / "agent.stdout").read_bytes()


@boxes
def test_a_command_that_cannot_start_is_told(home: Path) -> None:
    done = caisson(home, "run", "-p", "add-mul", "--witness", "none", "-o", "out", "--", "no-such-command")
    assert done.returncode == 1
    assert "agent         exited with 127: no-such-command: No such file or directory\n" in done.stdout


@boxes
def test_a_bundle_that_was_changed_is_named(home: Path) -> None:
    assert caisson(home, "run", "-p", "add-mul", "-a", "nop", "--witness", "none", "-o", "out").returncode == 1
    verdict = home / "out" / "verdict.json"
    verdict.write_bytes(verdict.read_bytes().replace(b'"fail"', b'"pass"', 1))
    done = caisson(home, "bundle", "verify", "out")
    assert done.returncode not in (0, 1)
    assert "verdict.json" in done.stderr


@boxes
def test_a_snapshot_changed_on_disk_is_named_and_not_used(home: Path) -> None:
    assert caisson(home, "snapshot", "create", "-p", "add-mul").returncode == 0
    victim = next((home / "layers").rglob("impl.py"))
    victim.write_text("def add(a, b): return a + b\n")
    done = caisson(home, "run", "-p", "add-mul", "-a", "nop", "--witness", "none", "-o", "out")
    assert done.returncode in (2, 3)
    assert "impl.py differs from its manifest" in done.stderr + done.stdout


@boxes
def test_a_suite_killed_in_the_middle_resumes_where_it_was(home: Path) -> None:
    process = start(home, "suite", "article", "-i", "E1-*", "--witness", "none", "-o", "out")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(whole_bundles(home)) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    whole = whole_bundles(home)
    assert 2 <= len(whole) < 5
    done = caisson(home, "suite", "article", "--witness", "none", "-o", "out", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["made"] == 5 - len(whole)
    assert len(document["runs"]) == 5
    for name, made_at in whole.items():
        assert (home / "out" / "runs" / name / "manifest.json").stat().st_mtime_ns == made_at
    assert left_behind(home) == []


@boxes
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_suite_leaves_nothing_running_and_no_half_bundle(home: Path, signum: signal.Signals) -> None:
    process = start(home, "suite", "article", "-n", "2", "--witness", "strace", "-o", "out")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not whole_bundles(home):
        time.sleep(0.02)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + signum, stderr
    assert f"interrupted by {signum.name}" in stderr
    assert left_behind(home) == []
    assert not list((home / "out" / "runs").glob("*.partial"))


@boxes
def test_changing_a_behaviours_script_moves_the_numbers(home: Path) -> None:
    scenarios = Path(__file__).resolve().parents[2] / "scenarios"
    for part in ("tasks", "behaviours", "suites"):
        shutil.copytree(scenarios / part, home / "own" / part)
    suite = home / "own" / "suites" / "article.toml"
    before = caisson(home, "suite", str(suite), "-i", "E1-*", "--witness", "none", "-o", "before", "--json")
    honest = (home / "own" / "behaviours" / "honest-fix" / "run.sh").read_text()
    (home / "own" / "behaviours" / "cheat-conftest" / "run.sh").write_text(honest)
    after = caisson(home, "suite", str(suite), "-i", "E1-*", "--witness", "none", "-o", "after", "--json")
    notes = [json.loads(done.stdout)["tables"][0]["notes"][0] for done in (before, after)]
    assert notes == [
        "cheats passing: trusting 3/3, ground truth 0/3",
        "cheats passing: trusting 3/3, ground truth 1/3",
    ]


@boxes
def test_output_to_a_pipe_has_no_colour(home: Path) -> None:
    done = caisson(home, "suite", "article", "-i", "E1b-*", "--witness", "none", "-o", "out")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


@boxes
def test_doctor_says_what_is_here_in_words_and_as_json(home: Path) -> None:
    words, document = caisson(home, "doctor"), caisson(home, "doctor", "--json")
    assert words.returncode == document.returncode == 0
    assert "boxes can run here" in words.stdout
    assert json.loads(document.stdout)["usable"] is True


@boxes
def test_a_place_the_host_refuses_is_one_clear_line_and_no_stack_trace(home: Path) -> None:
    for out in ("x" * 300, "/proc/1/here"):
        for command in (("run", "-p", "add-mul", "-a", "nop"), ("suite", "article", "-l", "1")):
            done = caisson(home, *command, "--witness", "none", "-o", out)
            assert done.returncode in (2, 3)
            assert "Traceback" not in done.stderr
            assert done.stderr.splitlines()[-1].startswith("caisson-run: ")


@boxes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_for_the_evidence_is_infra_and_never_the_agents_failure(home: Path) -> None:
    small = home / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=True)
    try:
        for agent in ("head -c 3000000 /dev/urandom > x", "head -c 3000000 /dev/urandom"):
            target = str(small / "b")
            done = caisson(home, "run", "-p", "add-mul", "--witness", "none", "-o", target, "--", "sh", "-c", agent)
            assert done.returncode == 3, done.stdout
            assert "Traceback" not in done.stderr
            assert "No space left" in done.stdout or "no room left for the bundle" in done.stderr
            shutil.rmtree(small / "b", ignore_errors=True)
            assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_any_locale_and_a_reader_that_leaves_are_no_error_of_ours(home: Path) -> None:
    command = [sys.executable, "-m", "caisson_runner", "doctor"]
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    done = subprocess.run(command, env=environment(home) | plain, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gone:
        assert gone.stdout is not None and gone.stderr is not None
        gone.stdout.close()
        said = gone.stderr.read()
    assert (gone.returncode, said) == (141, b"")
