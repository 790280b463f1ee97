"""The parts of ``make test-kernels`` that need no machine: sources, jobs, answers, the page."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def load(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"caisson_vm_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(path.parent))


machine, matrix, parts, run = (load(HERE / f"{name}.py") for name in ("machine", "matrix", "parts", "run"))
sources = load(HERE.parents[1] / "packaging/vm/sources.py")
pick = load(HERE.parents[1] / "packaging/vm/pick.py")

DEB822 = """Types: deb deb-src
URIs: https://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/a.gpg

# another archive
Types: deb
URIs: https://mirror.test/security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://vendor.test/packages
Suites: stable
Components: main
"""


def test_sources_of_another_suite_come_from_the_machines_own_mirrors() -> None:
    found = sources.exchanged(sources.deb822(DEB822), "bookworm", "bullseye")
    assert found == [
        "deb [check-valid-until=no signed-by=/usr/share/keyrings/a.gpg] https://mirror.test/debian bullseye main",
        "deb [check-valid-until=no] https://mirror.test/security bullseye-security main",
    ]
    one_line = "deb [arch=amd64 signed-by=/k.gpg] https://mirror.test/debian bookworm main # note\n"
    assert sources.exchanged(sources.one_line(one_line), "bookworm", "sid") == [
        "deb [check-valid-until=no signed-by=/k.gpg] https://mirror.test/debian sid main"
    ]


def test_a_rolling_suite_has_no_security_archive() -> None:
    assert [line.split()[-2] for line in sources.exchanged(sources.deb822(DEB822), "bookworm", "sid")] == ["sid"]


def test_a_lock_is_picked_whole_with_its_hashes() -> None:
    lock = "a==1 ; python_version > '3' \\\n    --hash=sha256:00\n    # via b\nb==2 \\\n    --hash=sha256:11\n"
    assert pick.pick(lock, {"a", "none"}) == ["a==1 ; python_version > '3' \\", "    --hash=sha256:00"]


def test_an_answer_without_an_exit_code_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "release").write_text("1\n")
    monkeypatch.setattr(machine, "qemu", lambda *_: ["true"])
    with pytest.raises(machine.MachineError, match="no exit code"):
        machine.play(machine.Kernel("k", tmp_path), tmp_path / "image", machine.pack({"job.sh": b"x"}), 5)
    monkeypatch.setattr(machine, "qemu", lambda *_: ["sleep", "60"])
    with pytest.raises(machine.MachineError, match="no answer within"):
        machine.play(machine.Kernel("k", tmp_path), tmp_path / "image", machine.pack({"job.sh": b"x"}), 0.2)


def test_what_a_job_leaves_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "release").write_text("1\n")
    answer = machine.pack({"code": b"7\n", "log": b"\xff", "deep/file": b"\0"})
    (tmp_path / "answer").write_bytes(answer)
    monkeypatch.setattr(
        machine, "qemu", lambda kernel, image, job, out, *_: ["dd", "status=none", "conv=notrunc",
                                                             f"if={tmp_path / 'answer'}", f"of={out}"]
    )  # fmt: skip
    found = machine.play(machine.Kernel("k", tmp_path), tmp_path / "image", machine.pack({"job.sh": b"x"}), 20)
    assert (found.code, found.log, found.files) == (7, b"\xff", {"deep/file": b"\0"})


def test_a_report_that_did_not_come_is_a_problem_and_not_a_pass() -> None:
    answer = machine.Answer(1, b"ImportError", b"", {}, 1.0)
    result = run.judged(answer, run.Result("6.1"))
    assert "no report" in result.problem
    assert "no answer" in run.table([result])


def seen(
    kernel: str, release: str, part: str, tests: dict[str, str], **events: dict[str, list[str]]
) -> dict[str, object]:
    doctor = [
        {"name": "hook open", "detail": "fexit on do_filp_open fires"},
        {"name": "hook link", "detail": "lsm on bpf_lsm_path_link: it loads and attaches but never fires"},
        {"name": "BTF", "detail": "there"},
    ]
    return {
        "kernel": kernel, "release": release, "part": part, "problem": "", "tests": tests,
        "seen": {"seen": events, "doctor": doctor},
    }  # fmt: skip


def test_the_page_is_rewritten_between_its_marks_only() -> None:
    result = seen(
        "6.1", "6.1.0-1", "all", {"m::test_b": "passed"}, tracepoint={"open": ["a"]}, trampoline={"exec": ["c"]}
    )
    first = matrix.rewritten("before\n", matrix.section([result]))
    assert first.startswith("before\n")
    assert "| exec | – | 1 |" in first
    assert matrix.rewritten(first + "after\n", "new") == f"before\n\n{matrix.BEGIN}\n\nnew\n\n{matrix.END}\nafter\n"


def test_the_page_joins_the_parts_of_a_kernel_and_sorts_kernels_by_age() -> None:
    page = matrix.section(
        [
            seen("here", "6.18.1", "own", {"m::test_a_thing[tracepoint]": "passed"}, tracepoint={"open": ["a"]}),
            seen("6.1", "6.1.0-1", "one", {"m::test_a_thing[tracepoint]": "passed"}, tracepoint={"open": ["a"]}),
            seen(
                "6.1",
                "6.1.0-1",
                "two",
                {"m::test_a_thing[trampoline-x]": "skipped: no hook"},
                trampoline={"open": ["b"]},
            ),
            seen(
                "5.10", "5.10.0-4", "one", {"m::test_a_thing[tracepoint]": "failed: 1 != 2"}, tracepoint={"fork": ["a"]}
            ),
        ]
    )
    assert "| event | 5.10 tracepoint | 6.1 tracepoint | 6.1 trampoline | 6.18 (own) tracepoint |" in page
    assert "| a thing | **no** | yes | skipped | yes |" in page
    assert "| open | `do_filp_open` | `do_filp_open` | `do_filp_open` |" in page
    assert "* 6.1: skipped: no hook (`test_a_thing[trampoline-x]`)" in page
    assert "| link | it loads and attaches but never fires |" in page
    assert "| 6.1 | `6.1.0-1` | 1 | 0 | 1 | 1 of 2 |  |" in page


def test_results_are_kept_beside_those_of_other_kernels_and_parts(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    for kernel, part, release in (("6.1", "one", "a"), ("6.1", "two", "a"), ("6.12", "one", "a"), ("6.1", "one", "b")):
        run.keep(target, [run.Result(kernel, part, release)])
    held = {(one["kernel"], one["part"]): one["release"] for one in json.loads(target.read_text())}
    assert held == {("6.1", "one"): "b", ("6.1", "two"): "a", ("6.12", "one"): "a"}


def test_every_part_names_tests_that_exist() -> None:
    top = HERE.parents[1]
    for part in (*parts.PARTS.values(), parts.QUICK):
        assert part.files
        assert all((top / name).exists() for name in part.files)
    for name, words in {**parts.DAEMON, "restart": parts.RESTART}.items():
        text = (top / f"tests/tracerd/test_tracerd_{name}.py").read_text()
        assert [word for word in words if word not in text] == []
