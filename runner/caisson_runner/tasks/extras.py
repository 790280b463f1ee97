"""`caisson.toml`, beside `task.toml`: what Harbor has no word for. Strict: an unknown key is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from caisson_runner.tasks.errors import TaskMalformed
from caisson_runner.tasks.table import Table

SCHEMA = "caisson.task/v1"
ROLES = ("ground_truth", "held_out")
MAX_CASES = 10_000

# Brought back from the snapshot before a script checks anything: what a test run executes without being asked.
TOOLCHAIN: tuple[str, ...] = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/etc",
    "/root/.local",
    "/root/.config",
    "/root/.bashrc",
    "/root/.bash_profile",
    "/root/.profile",
)


@dataclass(frozen=True, slots=True)
class TrustingRule:
    """What a naive harness runs in the agent's own box, and which words of the agent it believes."""

    command: tuple[str, ...]
    claim: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ExaminerRule:
    """The task author's examiner: a Python file with visible(), generate(rng) and optionally check()."""

    file: Path
    cases: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """The agent's code under examination. `path` entries are relative to the workspace."""

    module: str
    functions: tuple[str, ...]
    path: tuple[str, ...]
    start_timeout_s: float
    call_timeout_s: float
    total_timeout_s: float


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """Tests run with pytest in a clean fork; every id in `expected` must be reported passed, by name."""

    name: str
    role: str
    tests: Path
    expected: tuple[str, ...]
    path: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Extras:
    """All of `caisson.toml`, or its defaults when a task has none."""

    base: str | None = None
    workspace: str | None = None
    deliverables: tuple[str, ...] = ()
    visible_files: Path | None = None
    visible_tests: tuple[str, ...] = ()
    split: bool = True
    """Whether tests/test.sh's pytest files are also run with the agent's modules in another room (verify/split.py)."""
    answers: tuple[str, ...] = ()
    """Where the agent's own box holds an answer or a reference implementation; absolute, as for `fnmatch`."""
    answer_urls: tuple[str, ...] = ()
    """Where the world holds one: host and path, as for `fnmatch`; the gate sees them."""
    trusting: TrustingRule | None = None
    examiner: ExaminerRule | None = None
    subject: SubjectRule | None = None
    scripts: tuple[ScriptRule, ...] = ()
    harbor_role: str | None = None
    restore: tuple[str, ...] = TOOLCHAIN


def _inside(table: Table, key: str, root: Path, *, kind: str) -> Path:
    """A path below the task directory that exists and is of the kind wanted."""
    given = table.need_text(key)
    path = (root / given).resolve()
    if PurePosixPath(given).is_absolute() or not path.is_relative_to(root.resolve()):
        raise table.wrong(key, f"{given!r} leaves the task directory")
    if not (path.is_file() if kind == "file" else path.is_dir()):
        raise table.wrong(key, f"no {kind} {given!r} in the task directory")
    return path


def _relative(table: Table, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    paths = table.texts(key, default)
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise table.wrong(key, f"{path!r} must be relative to the workspace, without '..'")
    return paths


def _seconds(table: Table, key: str, default: float) -> float:
    value = table.number(key, default)
    assert value is not None
    return value


def _examiner(table: Table, root: Path) -> ExaminerRule:
    cases = table.integer("cases", 20, least=1)
    assert cases is not None
    if cases > MAX_CASES:
        raise table.wrong("cases", f"must be {MAX_CASES} or fewer, is {cases}")
    rule = ExaminerRule(_inside(table, "file", root, kind="file"), cases, _seconds(table, "timeout_sec", 60.0))
    if rule.file.parent == root.resolve():
        raise table.wrong("file", "must lie in a directory of its own: that directory is what the examiner's room sees")
    table.finish()
    return rule


def _subject(table: Table) -> SubjectRule:
    name = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
    module, functions = table.need_text("module"), table.texts("functions")
    if not name.fullmatch(module):
        raise table.wrong("module", f"{module!r} is no module name")
    if not functions:
        raise table.wrong("functions", "must name at least one function")
    for function in functions:
        if not name.fullmatch(function):
            raise table.wrong("functions", f"{function!r} is no function name")
    rule = SubjectRule(
        module,
        functions,
        _relative(table, "path", (".",)),
        _seconds(table, "start_timeout_sec", 20.0),
        _seconds(table, "call_timeout_sec", 5.0),
        _seconds(table, "total_timeout_sec", 120.0),
    )
    table.finish()
    return rule


def _script(table: Table, root: Path) -> ScriptRule:
    listing = _inside(table, "expected", root, kind="file")
    expected = tuple(line.strip() for line in listing.read_text().splitlines() if line.strip())
    if not expected:
        raise table.wrong("expected", "lists no test; without names that must pass nothing is proved")
    role = table.choice("role", ROLES, "held_out")
    assert role is not None
    rule = ScriptRule(
        table.need_text("name"),
        role,
        _inside(table, "tests", root, kind="directory"),
        expected,
        _relative(table, "path", (".",)),
        _seconds(table, "timeout_sec", 600.0),
    )
    if listing.is_relative_to(rule.tests):
        raise table.wrong("expected", "must not lie inside the tests directory, which is uploaded")
    table.finish()
    return rule


def _absolute(table: Table, key: str) -> str | None:
    path = table.text(key)
    if path is not None and (not path.startswith("/") or ".." in path.split("/")):
        raise table.wrong(key, f"must be an absolute path without '..', is {path!r}")
    return path


def _answers(root: Table) -> tuple[str, ...]:
    answers = root.texts("answers")
    if any(not path.startswith("/") for path in answers):
        raise root.wrong("answers", "must be absolute paths or patterns")
    return answers


def read_caisson_toml(file: Path) -> Extras:
    """Read one `caisson.toml`. Raises TaskMalformed with file, line and key."""
    root = Table.of_schema(file, TaskMalformed, SCHEMA)
    directory = file.parent

    visible_files: Path | None = None
    visible_tests: tuple[str, ...] = ()
    if (visible := root.table("visible")) is not None:
        visible_tests = _relative(visible, "tests", ())
        if visible.has("files"):
            visible_files = _inside(visible, "files", directory, kind="directory")
        visible.finish()

    trusting: TrustingRule | None = None
    if (table := root.table("trusting")) is not None:
        command = table.texts("command")
        if not command:
            raise table.wrong("command", "must be a list with at least a program")
        claim = table.texts("claim")
        trusting = TrustingRule(command, tuple(word.lower() for word in claim), _seconds(table, "timeout_sec", 600.0))
        table.finish()

    examiner_table, subject_table = root.table("examiner"), root.table("subject")
    if (examiner_table is None) != (subject_table is None):
        raise root.wrong("examiner" if subject_table else "subject", "examiner and subject need each other")
    scripts = tuple(_script(table, directory) for table in root.tables("scripts"))
    if len({script.name for script in scripts}) != len(scripts):
        raise root.wrong("scripts", "two scripts have the same name")

    restore = TOOLCHAIN
    if (table := root.table("restore")) is not None:
        restore = table.texts("paths", TOOLCHAIN)
        if any(not path.startswith("/") for path in restore):
            raise table.wrong("paths", "must be absolute paths")
        table.finish()

    extras = Extras(
        base=root.text("base"),
        workspace=_absolute(root, "workspace"),
        deliverables=_relative(root, "deliverables", ()),
        visible_files=visible_files,
        visible_tests=visible_tests,
        trusting=trusting,
        examiner=_examiner(examiner_table, directory) if examiner_table else None,
        subject=_subject(subject_table) if subject_table else None,
        scripts=scripts,
        harbor_role=root.choice("harbor_verifier", (*ROLES, "none")),
        restore=restore,
        answers=_answers(root),
        answer_urls=root.texts("answer_urls"),
        split=root.flag("split", True),
    )
    root.finish()
    return extras
