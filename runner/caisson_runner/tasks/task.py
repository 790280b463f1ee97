"""One task: a Harbor task directory, with `caisson.toml` beside its `task.toml` when there is one."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caisson_runner.tasks.dockerfile import Recipe, parse_dockerfile
from caisson_runner.tasks.errors import TaskMalformed, TaskNotFound, UnsupportedTask
from caisson_runner.tasks.extras import Extras, read_caisson_toml
from caisson_runner.tasks.harbor import HarborTask, read_task_toml
from caisson_runner.tasks.search import scenarios_root
from caisson_runner.tasks.table import near

DEFAULT_WORKDIR = "/app"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True, slots=True)
class Task:
    """A loaded task. Paths are absolute; nothing in it has been run."""

    path: Path
    id: str
    harbor: HarborTask
    extras: Extras
    recipe: Recipe | None
    instruction: str
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Harbor's "org/name" when the task has one, else the directory's name."""
        return self.harbor.name or self.id

    @property
    def workdir(self) -> str:
        """Where the agent starts."""
        if self.harbor.workdir:
            return self.harbor.workdir
        if self.recipe is not None and self.recipe.workdir != "/":
            return self.recipe.workdir
        return DEFAULT_WORKDIR

    @property
    def workspace(self) -> str:
        """Where the agent's work is expected; writes elsewhere become findings."""
        return self.extras.workspace or self.workdir

    def to_json(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        return {
            "id": self.id,
            "name": self.name,
            "digest": self.digest(),
            "workspace": self.workspace,
            "visible_tests": list(self.extras.visible_tests),
        }

    @property
    def agent_timeout_s(self) -> float | None:
        return self.harbor.agent_timeout_s

    @property
    def tests_dir(self) -> Path | None:
        directory = self.path / "tests"
        return directory if (directory / "test.sh").is_file() else None

    @property
    def solution_dir(self) -> Path | None:
        directory = self.path / "solution"
        return directory if (directory / "solve.sh").is_file() else None

    @property
    def harbor_role(self) -> str:
        """`ground_truth`, `held_out` or `none`: what the result of tests/test.sh counts as."""
        if self.extras.harbor_role:
            return self.extras.harbor_role
        graded = self.extras.examiner is not None or any(s.role == "ground_truth" for s in self.extras.scripts)
        return "none" if graded else "ground_truth"

    @property
    def has_held_out(self) -> bool:
        return (
            self.extras.examiner is not None
            or self.harbor_role == "held_out"
            or any(script.role == "held_out" for script in self.extras.scripts)
        )

    def digest(self) -> str:
        """sha256 over every file of the task directory (path, executable bit, content): the task's identity."""
        total = hashlib.sha256()
        for file in walk_files(self.path):
            total.update(f"{file.relative_to(self.path)}\0{int(bool(file.stat().st_mode & 0o100))}\0".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()

    def files(self) -> dict[str, Path]:
        """What goes into the snapshot: absolute path in the box -> file or directory here. No tests, no solution."""
        found: dict[str, Path] = {}
        environment = self.path / "environment"
        if self.recipe is not None:
            for copied in self.recipe.copies:
                found.update(_spread(copied.source, copied.target))
        elif environment.is_dir():
            found.update(_spread(environment, self.workdir))
        if self.extras.visible_files is not None:
            found.update(_spread(self.extras.visible_files, self.workspace))
        return found

    def base(self, bases: Mapping[str, str]) -> str:
        """`host`, or the path of a root filesystem tar, that stands in for the task's image.

        `bases` maps image names to one of the two (`--base ubuntu:24.04=PATH`). Raises UnsupportedTask.
        """
        image = self.recipe.image if self.recipe is not None else self.harbor.docker_image
        if image is None:
            return self.extras.base or "host"
        if image in bases:
            return bases[image]
        if self.extras.base is not None:
            return self.extras.base
        where = "environment/Dockerfile: FROM" if self.recipe is not None else "task.toml: environment.docker_image"
        raise UnsupportedTask(
            f"{self.path / where} {image}: no base is mapped to it; add --base {image}=host (this machine's /usr) "
            f"or --base {image}=PATH of a root filesystem tar"
        )


def walk_files(root: Path) -> Iterator[Path]:
    """Every file below a directory in a fixed order; compiled Python is not part of anything."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _spread(source: Path, target: str) -> dict[str, Path]:
    """A directory's entries one by one, so that two directories can go to one place."""
    if source.is_file():
        return {target: source}
    return {
        f"{target.rstrip('/')}/{file.relative_to(source)}": file
        for file in walk_files(source)
        if file.name != "Dockerfile" or file.parent != source
    }


def _check_links(root: Path) -> None:
    """No link leads out of the task, and none of the environment's to the tests: what it copies the agent sees."""
    top, environment = root.resolve(), (root / "environment").resolve()
    for path in root.rglob("*"):
        if not path.is_symlink():
            continue
        try:
            path.stat()
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise TaskMalformed(path, "", "this link leads round in a circle") from None
        target = path.resolve()
        if not target.is_relative_to(top):
            raise TaskMalformed(path, "", "this link leaves the task directory")
        if path.absolute().is_relative_to(root.absolute() / "environment"):
            if not target.is_relative_to(environment):
                raise TaskMalformed(path, "", "this link leaves environment/, which is all that the agent may see")
            if not target.is_file():
                raise UnsupportedTask(f"{path}: links to folders, or to nothing, are not supported in environment/")


def find_task(name: str | Path, roots: tuple[Path, ...] = ()) -> Path:
    """The directory of a task given as a path or by its name in one of the roots. Raises TaskNotFound."""
    direct = Path(name)
    if direct.is_dir():
        return direct.resolve()
    places = (*roots, scenarios_root() / "tasks")
    for root in places:
        if (root / name).is_dir():
            return (root / name).resolve()
    known = sorted({entry.name for root in places if root.is_dir() for entry in root.iterdir() if entry.is_dir()})
    raise TaskNotFound(
        f"no task {str(name)!r}: no such directory, and not among {', '.join(known) or 'none'}{near(str(name), known)}"
    )


def load_task(name: str | Path, roots: tuple[Path, ...] = ()) -> Task:
    """Load one task. Raises TaskNotFound, TaskMalformed or UnsupportedTask; runs nothing."""
    path = find_task(name, roots)
    toml = path / "task.toml"
    if not toml.is_file():
        raise TaskNotFound(f"{path}: no task.toml in it; a task is a Harbor task directory")
    _check_links(path)
    harbor = read_task_toml(toml)
    environment = path / "environment"
    for compose in COMPOSE:
        if (environment / compose).exists():
            raise UnsupportedTask(f"{environment / compose}: multi-container tasks are not supported yet")
    if (path / "steps").is_dir():
        raise UnsupportedTask(f"{path / 'steps'}: multi-step tasks are not supported yet; split it into tasks")
    for own in ("Dockerfile", *COMPOSE):
        if (path / "tests" / own).exists():
            raise UnsupportedTask(f"{path / 'tests' / own}: own verifier images are not supported yet")
    if (path / "trajectory.json").exists():
        raise UnsupportedTask(f"{path / 'trajectory.json'}: seeding a prior trajectory is not supported yet")
    instruction = path / "instruction.md"
    if not instruction.is_file():
        raise TaskMalformed(instruction, "", "is missing; a task needs its instruction")
    dockerfile = environment / "Dockerfile"
    recipe = parse_dockerfile(dockerfile) if dockerfile.is_file() else None
    extra_file = path / "caisson.toml"
    extras = read_caisson_toml(extra_file) if extra_file.is_file() else Extras()
    task = Task(
        path=path,
        id=path.name,
        harbor=harbor,
        extras=extras,
        recipe=recipe,
        instruction=instruction.read_text(errors="replace"),
        warnings=harbor.warnings,
    )
    if task.harbor_role != "none" and task.tests_dir is None:
        raise TaskMalformed(path / "tests" / "test.sh", "", "is missing, and caisson.toml names no other check")
    return task
