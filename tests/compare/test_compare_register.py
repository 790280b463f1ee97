"""The register of routes and the scripts it names."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from caisson_runner.boxes import seccomp
from caisson_runner.compare.errors import RoutesInvalid
from caisson_runner.compare.rig import routes_folder
from caisson_runner.compare.routes import load_routes, select
from caisson_runner.compare.visible import Answers, compared, probe_folder, read_answers

ROUTES = load_routes(routes_folder())
GOOD = 'ebpf = "seen"\nstrace = "missed"\npolling = "chance"\nwhy = { strace = "because" }\n'


def register(folder: Path, text: str) -> Path:
    (folder / "a.py").write_text("")
    (folder / "routes.toml").write_text(text)
    return folder


def test_every_script_is_registered_and_every_result_declared() -> None:
    assert len({route.id for route in ROUTES}) > 80
    for route in ROUTES:
        assert set(route.expected) == {"ebpf", "strace", "polling"}
        assert not set(route.allow) - seccomp.REASONS.keys()


def test_every_group_has_a_control_or_shares_that_of_all() -> None:
    assert {"A1", "A2", "A3", "A4", "A5", "A7"} <= {route.group for route in ROUTES if route.control}
    assert any(route.id == "control-held" and route.control and route.quick for route in ROUTES)


@pytest.mark.parametrize("script", sorted({route.script for route in ROUTES}), ids=lambda path: path.stem)
def test_a_route_stands_alone_and_says_what_it_does(script: Path) -> None:
    tree = ast.parse(script.read_bytes())
    says = ast.get_docstring(tree) or ""
    assert says.startswith(f"{script.stem}: ") and "Does: " in says and "Must be seen: " in says.replace("\n", " ")
    imported = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= sys.stdlib_module_names


def test_quick_is_a_part_and_a_glob_chooses_by_id_or_case() -> None:
    quick = select(ROUTES, (), quick=True)
    assert 20 < len(quick) < len(ROUTES) / 1.5
    assert [route.name for route in select(ROUTES, ("open-openat/open",), quick=False)] == ["open-openat/open"]
    assert len(select(ROUTES, ("open-openat",), quick=True)) == 3
    with pytest.raises(RoutesInvalid, match="no route matches"):
        select(ROUTES, ("nothing*",), quick=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[a]\nebpf = "seen"\nstrace = "seen"\n', "nothing is said of polling"),
        ('[a]\nebpf = "maybe"\nstrace = "seen"\npolling = "chance"\n', "the words are"),
        ('[a]\nebpf = "missed"\nstrace = "seen"\npolling = "chance"\n', "without a reason"),
        (f"[a]\n{GOOD}colour = 1\n", "colour is no key"),
        (f"[b]\n{GOOD}", "no script b.py"),
        (f"[a]\n{GOOD}case.x = {{ ebpf = 'seen' }}\n", "case.x is not among"),
        ("[a\n", "Expected"),
        ("", "a.py is not registered"),
    ],
)
def test_a_register_with_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RoutesInvalid, match=says):
        load_routes(register(tmp_path, text))


def test_a_case_may_differ_from_its_route(tmp_path: Path) -> None:
    text = f'[a]\ncases = ["x", "y"]\n{GOOD}case.y = {{ strace = "seen" }}\n'
    x, y = load_routes(register(tmp_path, text))
    assert (x.name, str(x.expected["strace"]), x.expected["strace"].why) == ("a/x", "missed", "because")
    assert (y.name, str(y.expected["strace"])) == ("a/y", "seen")
    assert str(x.expected["polling"]) == "seen|partly|missed"


def answers(**changed: str) -> Answers:
    said = {"tracer": "0", "mounts": "[1]", "clock": "7", **changed}
    return Answers(said, {"empty call": (100.0, 90.0, 4000.0)})


def test_what_differs_between_boxes_without_a_witness_counts_for_nothing() -> None:
    without = [answers(), answers(clock="8")]
    assert compared("w", "ebpf", without, [answers(clock="9")]).answers == ()
    shown = compared("w", "strace", without, [answers(), answers(tracer="5")])
    assert shown.answers == ("tracer",) and shown.shows and shown.as_expected
    slow = Answers(answers().answers, {"empty call": (400.0, 500.0)})
    assert compared("w", "ebpf", without, [slow]).shows


def test_the_probe_answers_on_any_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(probe_folder() / "probe.py")], capture_output=True, timeout=60, check=True
    )
    found = read_answers(done.stdout)
    assert json.loads(found.answers["bpf"]).keys() >= {"0", "5"}
    assert {"tracer", "ptrace me", "descriptors", "mounts", "processes", "cgroups"} <= found.answers.keys()
    assert {"empty call", "failing open", "fork", "program"} <= found.timings.keys()
