"""Suites: a plan of runs made once and kept on disk, carried out in parallel, resumable at any point.

A run is done when its bundle stands whole under `runs/`; nothing else is remembered, so a suite that was killed goes on
where it was. Tables are made from the bundles.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from caisson_runner import catalogue
from caisson_runner.errors import CaissonError
from caisson_runner.report import tables
from caisson_runner.results import Result, read_result
from caisson_runner.tasks import Experiment, Suite, SuiteMalformed

PLAN_SCHEMA = "caisson.plan/v1"


class SuiteChanged(CaissonError):
    """The suite on disk is not the one that the interrupted plan was made from."""

    exit_code: ClassVar[int] = 2


class NothingToResume(CaissonError):
    """No plan where one was to be resumed."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to make. `agents` has several entries only for a shared box, which they use one after the other."""

    id: str
    experiment: str
    task: str
    agents: tuple[str, ...]
    seed: int
    shared: bool = False


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:60] or "agent"


def _experiment_runs(experiment: Experiment, suite: Suite, attempts: int) -> list[Planned]:
    runs: list[Planned] = []

    def add(identity: str, task: str, agents: tuple[str, ...], shared: bool = False) -> None:
        runs.append(Planned(identity, experiment.id, task, agents, secrets.randbits(63), shared))

    for attempt in range(attempts):
        again = f"-again{attempt}" if attempt else ""
        for scenario in catalogue.expressible(experiment.scenarios):
            own, together, after = catalogue.row_ids(scenario)
            add(f"{own}{again}", scenario.task, (scenario.id,))
            if scenario.later:
                add(f"{together}{again}", scenario.task, (scenario.id, scenario.later), shared=True)
                add(f"{after}{again}", scenario.task, (f"{catalogue.AFTER}{scenario.id}",))
        if experiment.kind == "contamination":
            agents = experiment.agents()
            add(f"{experiment.id}-shared{again}", experiment.tasks[0], agents, shared=True)
            for number, agent in enumerate(agents):
                add(f"{experiment.id}-slot{number}-{_slug(agent)}{again}", experiment.tasks[0], (agent,))
            continue
        for task in experiment.tasks if experiment.slots else ():
            prefix = f"{experiment.id}-{_slug(suite.task(task).id)}" if experiment.kind == "matrix" else experiment.id
            for slot in experiment.slots:
                name = _slug(slot.agent.replace("{task}-", "").replace("{task}", ""))
                for repeat in range(slot.repeat):
                    suffix = f"-{repeat}" if slot.repeat > 1 else ""
                    add(f"{prefix}-{name}{suffix}{again}", task, (slot.agent,))
    return runs


def plan(
    suite: Suite,
    attempts: int = 1,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
) -> list[Planned]:
    """Every run of the suite, in order, each with a seed drawn now. Raises SuiteMalformed when two share an id."""
    runs = [run for experiment in suite.experiments for run in _experiment_runs(experiment, suite, attempts)]
    ids = [run.id for run in runs]
    if doubled := next((i for i in ids if ids.count(i) > 1), None):
        raise SuiteMalformed(suite.path, "", f"two runs would be called {doubled}; give one slot with repeat instead")
    if include:
        runs = [run for run in runs if any(fnmatch.fnmatchcase(run.id, glob) for glob in include)]
    runs = [run for run in runs if not any(fnmatch.fnmatchcase(run.id, glob) for glob in exclude)]
    return runs[:limit]


def suite_digest(suite: Suite) -> str:
    """sha256 over the suite's file, its tasks and its behaviours: what a plan was made from."""
    total = hashlib.sha256(suite.path.read_bytes())
    for experiment in suite.experiments:
        files = {scenario.file for scenario in experiment.scenarios}
        if experiment.world is not None:
            files |= {file for file in experiment.world.rglob("*") if file.is_file()}
        for file in sorted(files):
            total.update(file.read_bytes())
        for name in experiment.tasks:
            task = suite.task(name)
            total.update(task.digest().encode())
            for slot in experiment.slots:
                behaviour = suite.plan(slot.agent, task).behaviour
                if behaviour is not None:
                    for file in sorted(p for p in behaviour.directory.rglob("*") if p.is_file()):
                        total.update(f"{behaviour.id}/{file.name}\0".encode() + file.read_bytes())
    return total.hexdigest()


def write_plan(folder: Path, suite: Suite, runs: Sequence[Planned]) -> None:
    """Write `plan.json`, whole or not at all."""
    document = {
        "schema": PLAN_SCHEMA,
        "suite": suite.name,
        "suite_file": str(suite.path),
        "suite_digest": suite_digest(suite),
        "runs": [asdict(run) for run in runs],
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "plan.json.partial"
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(folder / "plan.json")


def _planned(fields: dict[str, Any]) -> Planned:
    """One run of a plan on disk. ValueError, KeyError or TypeError when it is none: its id becomes a folder."""
    run = Planned(**{**fields, "agents": tuple(fields["agents"])})
    texts = (run.id, run.experiment, run.task, *run.agents)
    sound = all(isinstance(text, str) for text in texts) and isinstance(run.seed, int) and isinstance(run.shared, bool)
    if not sound or not run.agents or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", run.id):
        raise ValueError("a run in it is none")
    return run


def read_plan(folder: Path, suite: Suite) -> list[Planned]:
    """Read the plan of an interrupted suite. Raises NothingToResume or SuiteChanged."""
    path = folder / "plan.json"
    if not path.is_file():
        raise NothingToResume(f"{folder}: no plan.json, so there is nothing to resume; start without --resume")
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        runs = [_planned(run) for run in document["runs"]]
        digest = document["suite_digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise NothingToResume(f"{path}: is damaged ({error}); start anew in another folder") from None
    if digest != suite_digest(suite):
        raise SuiteChanged(f"{folder}: suite {suite.name}, its tasks or its behaviours changed since; start anew")
    return runs


def done(folder: Path, planned: Planned) -> Result | None:
    """The result of a run whose bundle stands whole; a run without a verdict is made again."""
    bundle = folder / "runs" / planned.id
    if not (bundle / "manifest.json").is_file():
        return None
    try:
        result = read_result(bundle)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if result.word == "infra" else result


async def carry_out(
    runs: Sequence[Planned],
    make: Callable[[Planned], Awaitable[Result]],
    parallel: int,
    finished: Callable[[Result], None],
) -> list[Result]:
    """Make the runs, `parallel` at once; results in the plan's order. The first exception ends the others."""
    results: dict[str, Result] = {}
    queue = iter(runs)

    async def work() -> None:
        for planned in queue:
            result = await make(planned)
            results[planned.id] = result
            finished(result)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(parallel, len(runs))):
            group.create_task(work())
    return [results[run.id] for run in runs]


def suite_tables(suite: Suite, runs: Sequence[Planned], results: Sequence[Result]) -> list[tables.Table]:
    """One table for each experiment that had a run."""
    by_id = {result.id: result for result in results}
    made: list[tables.Table] = []
    for experiment in suite.experiments:
        own = [run for run in runs if run.experiment == experiment.id]
        plain = [by_id[run.id] for run in own if not run.shared]
        if not own:
            continue
        if experiment.kind == "catalogue":
            made.append(catalogue.matrix(experiment, by_id))
            continue
        if experiment.kind == "contamination":
            shared = [by_id[run.id] for run in own if run.shared]
            if shared and len(shared[0].shared) == len(plain):
                made.append(tables.contamination(experiment.id, experiment.title, shared[0].shared, plain))
            continue
        render = {
            "determinism": tables.determinism,
            "trusting_vs_truth": tables.trusting_vs_truth,
            "held_out": tables.held_out,
            "lie_rate": tables.lie_rate,
            "matrix": tables.matrix,
        }[experiment.kind]
        made.append(render(experiment.id, experiment.title, plain))
    return made


def metrics(results: Sequence[Result]) -> dict[str, int]:
    """An experiment's counts, by the names that `[experiments.expected]` uses."""
    plain = [r for r in results if not r.shared]
    cheats = [r for r in plain if r.is_cheat]
    slots = [slot for r in results for slot in r.shared]
    honest = {slot.behaviour for slot in slots if not slot.is_poison}
    return {
        "runs": len(plain),
        "trusting_pass": sum(1 for r in plain if r.trusting),
        "ground_truth_pass": sum(1 for r in plain if r.ground_truth),
        "held_out_pass": sum(1 for r in plain if r.held_out),
        "true_pass": sum(1 for r in plain if r.truth),
        "void": sum(1 for r in plain if r.word == "void"),
        "lies": sum(1 for r in plain if r.lie),
        "cheats": len(cheats),
        "cheats_trusting_pass": sum(1 for r in cheats if r.trusting),
        "cheats_true_pass": sum(1 for r in cheats if r.truth),
        "distinct_digests": len({r.state_digest for r in plain}),
        "shared_spurious": sum(1 for slot in slots if not slot.is_poison and not slot.passed),
        "isolated_spurious": sum(1 for r in plain if r.behaviour in honest and not r.trusting),
    }


def unexpected(suite: Suite, runs: Sequence[Planned], results: Sequence[Result], *, counts: bool = True) -> list[str]:
    """Where the runs differ from what the suite expects, one sentence each; empty when all is as declared.

    Without ``counts`` only the rows of catalogues are compared.
    """
    by_id = {result.id: result for result in results}
    lines: list[str] = []
    for experiment in suite.experiments:
        own = [by_id[run.id] for run in runs if run.experiment == experiment.id]
        lines += catalogue.surprises(experiment, by_id)
        if not own or not experiment.expected or not counts:
            continue
        counted = metrics(own)
        lines += [
            f"{experiment.id}: {name} is {counted[name]}, expected {wanted}"
            for name, wanted in experiment.expected.items()
            if counted[name] != wanted
        ]
    return lines
