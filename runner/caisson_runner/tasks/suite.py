"""Suites: which behaviours run on which task how often, and how their results are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caisson_runner.tasks.agent import AgentPlan, plan_agent
from caisson_runner.tasks.catalogue import LeftOut, Scenario, load_catalogue
from caisson_runner.tasks.errors import SuiteMalformed, TaskNotFound
from caisson_runner.tasks.search import scenarios_root
from caisson_runner.tasks.table import Table, near
from caisson_runner.tasks.task import Task, load_task

SCHEMA = "caisson.suite/v1"
KINDS = ("determinism", "trusting_vs_truth", "held_out", "lie_rate", "contamination", "matrix", "catalogue")
MAX_RUNS = 100_000

# What an experiment's optional [expected] may hold. Runs are compared with it; nothing is printed from it.
METRICS = (
    "runs",
    "trusting_pass",
    "ground_truth_pass",
    "held_out_pass",
    "true_pass",
    "void",
    "lies",
    "cheats",
    "cheats_trusting_pass",
    "cheats_true_pass",
    "distinct_digests",
    "shared_spurious",
    "isolated_spurious",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One agent, `repeat` times in a row, at this place of the experiment's order."""

    agent: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """One table of a suite's report. `tasks` has one entry except in a matrix."""

    id: str
    title: str
    kind: str
    tasks: tuple[str, ...]
    slots: tuple[Slot, ...]
    expected: Mapping[str, int]
    scenarios: tuple[Scenario, ...] = ()
    """Of a catalogue, which has no slots."""
    left_out: tuple[LeftOut, ...] = ()
    world: Path | None = None
    """Hosts that its agents find behind the gate (`caisson_runner.world`)."""

    def scenario(self, name: str) -> Scenario | None:
        return next((scenario for scenario in self.scenarios if scenario.id == name), None)

    def agents(self) -> tuple[str, ...]:
        """The agents in order, repeats written out."""
        return tuple(slot.agent for slot in self.slots for _ in range(slot.repeat))


@dataclass(frozen=True, slots=True)
class Suite:
    """A loaded suite. Task and behaviour names are resolved against its roots."""

    path: Path
    name: str
    title: str
    experiments: tuple[Experiment, ...]
    made_by: Path | None
    task_roots: tuple[Path, ...]
    behaviour_roots: tuple[Path, ...]

    def task(self, name: str) -> Task:
        try:
            return load_task(name, self.task_roots)
        except TaskNotFound as missing:
            if self.made_by is None:
                raise
            raise TaskNotFound(f"{missing}; this suite's tasks are made by {self.made_by}, run it first") from None

    def plan(self, agent: str, task: Task) -> AgentPlan:
        """The agent for one run; `{task}` in a matrix's agent names stands for the task's id."""
        return plan_agent(agent.replace("{task}", task.id), task, self.behaviour_roots)

    def resolve(self, experiment: str, task: str, agents: Sequence[str]) -> tuple[Task, list[AgentPlan]]:
        """The task and the agents of one run. Scenarios bring their own; `after:ID` is who works after one of them."""
        loaded = self.task(task)
        found = next(one for one in self.experiments if one.id == experiment)
        if not found.scenarios:
            return loaded, [self.plan(agent, loaded) for agent in agents]
        scenario = found.scenario(agents[0].removeprefix("after:"))
        assert scenario is not None
        plans = []
        for agent in (scenario.later,) if agents[0].startswith("after:") else agents:
            own = found.scenario(agent)
            plans.append(own.agent() if own is not None else self.plan(agent, loaded))
        return scenario.fit(loaded), plans

    def check(self) -> None:
        """Load every task and every agent once, so that a mistake shows before the first run."""
        for experiment in self.experiments:
            for name in experiment.tasks:
                task = self.task(name)
                for slot in experiment.slots:
                    self.plan(slot.agent, task)
            for scenario in experiment.scenarios:
                later = (f"after:{scenario.id}",) if scenario.later else (scenario.id,)
                self.resolve(experiment.id, scenario.task, later)


def find_suite(name: str | Path) -> Path:
    """A suite given as a file or by its name among those that come with Caisson."""
    direct = Path(name)
    if direct.is_file():
        return direct.resolve()
    place = scenarios_root() / "suites"
    if direct.suffix == "" and len(direct.parts) == 1 and (place / f"{name}.toml").is_file():
        return (place / f"{name}.toml").resolve()
    known = sorted(file.stem for file in place.glob("*.toml"))
    raise SuiteMalformed(str(name), "", f"no such suite; known are {', '.join(known)}{near(str(name), known)}")


def _slots(table: Table) -> tuple[Slot, ...]:
    slots = []
    for entry in table.tables("runs"):
        repeat = entry.integer("repeat", 1, least=1)
        assert repeat is not None
        if repeat > MAX_RUNS:
            raise entry.wrong("repeat", f"must be {MAX_RUNS} or fewer, is {repeat}")
        slots.append(Slot(entry.need_text("agent"), repeat))
        entry.finish()
    if not slots:
        raise table.wrong("runs", "an experiment needs at least one [[experiments.runs]] with an agent")
    return tuple(slots)


def _catalogue(table: Table, folder: Path) -> Experiment:
    identity = _plain(table, "id")
    names = table.texts("catalogues")
    if not names:
        raise table.wrong("catalogues", "a catalogue needs at least one file of scenarios")
    read = [load_catalogue((folder / name).resolve()) for name in names]
    scenarios = tuple(scenario for one in read for scenario in one.scenarios)
    ids = [scenario.id for scenario in scenarios]
    if doubled := next((one for one in ids if ids.count(one) > 1), None):
        raise table.wrong("catalogues", f"two scenarios are called {doubled!r}")
    world = table.text("world")
    if world is not None and not (folder / world).is_dir():
        raise table.wrong("world", f"no folder {world!r} beside the suite")
    experiment = Experiment(
        identity,
        table.text("title") or identity,
        "catalogue",
        tuple(dict.fromkeys(scenario.task for scenario in scenarios)),
        (),
        {},
        scenarios,
        tuple(row for one in read for row in one.left_out),
        (folder / world).resolve() if world is not None else None,
    )
    table.finish()
    return experiment


def _experiment(table: Table, default_tasks: tuple[str, ...], folder: Path) -> Experiment:
    kind = table.choice("kind", KINDS)
    if kind is None:
        raise table.wrong("kind", f"is required, one of {', '.join(KINDS)}")
    if kind == "catalogue":
        return _catalogue(table, folder)
    tasks = table.texts("tasks", default_tasks)
    if not tasks:
        raise table.wrong("tasks", "no task here and none at the top of the suite")
    if kind != "matrix" and len(tasks) != 1:
        raise table.wrong("tasks", f"only a matrix takes several tasks, not {kind}")
    expected: dict[str, int] = {}
    if (wanted := table.table("expected")) is not None:
        for metric in METRICS:
            value = wanted.integer(metric)
            if value is not None:
                expected[metric] = value
        wanted.finish()
    identity = _plain(table, "id")
    experiment = Experiment(identity, table.text("title") or identity, kind, tasks, _slots(table), expected)
    table.finish()
    return experiment


def _plain(table: Table, key: str) -> str:
    """A name that becomes part of a folder's."""
    name = table.need_text(key)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise table.wrong(key, f"must be 1 to 64 letters, digits, dots, dashes or underscores, is {name!r}")
    return name


def load_suite(name: str | Path, made: Path | None = None) -> Suite:
    """Load a suite by file or name. `made` is where tasks made at set-up lie. Raises SuiteMalformed."""
    path = find_suite(name)
    root = Table.of_schema(path, SuiteMalformed, SCHEMA)
    suite_name, title = _plain(root, "name"), root.text("title")
    default_tasks = root.texts("tasks")
    experiments = tuple(_experiment(table, default_tasks, path.parent) for table in root.tables("experiments"))
    if not experiments:
        raise root.wrong("experiments", "a suite needs at least one experiment")
    identities = [experiment.id for experiment in experiments]
    if len(set(identities)) != len(identities):
        raise root.wrong("experiments", "two experiments have the same id")
    made_by = None
    if (script := root.text("made_by")) is not None:
        made_by = (path.parent / script).resolve()
        if not made_by.is_file():
            raise root.wrong("made_by", f"no file {script!r} beside the suite")
    root.finish()
    places = (path.parent, path.parent.parent, *([made] if made is not None else []))
    return Suite(
        path=path,
        name=suite_name,
        title=title or suite_name,
        experiments=experiments,
        made_by=made_by,
        task_roots=tuple(place / "tasks" for place in places),
        behaviour_roots=tuple(place / "behaviours" for place in places),
    )
