"""One whole run as the runner does it, without a witness: for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from caisson_runner.boxes.engine import Bind, BoxLimits, Capture, Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, Store
from caisson_runner.tasks import Task, plan_agent
from caisson_runner.tasks.snapshot import snapshot_spec
from caisson_runner.verify import Examiner, Grader, Grades, Verdict, decide, findings, gather, open_examiner

LIMITS = BoxLimits(memory_bytes=1 << 30, wall_s=60.0)


@dataclass(frozen=True)
class Bench:
    """A task ready to be run many times."""

    engine: LocalEngine
    task: Task
    snapshot: Snapshot
    examiner: Examiner | None
    folder: Path


@dataclass(frozen=True)
class Ran:
    verdict: Verdict
    grades: Grades
    capture: Capture
    times: dict[str, float]

    @property
    def words(self) -> tuple[bool | None, bool | None, bool | None, str]:
        held = self.verdict.held_out.passed if self.verdict.held_out else None
        assert self.verdict.trusting is not None
        return self.verdict.trusting.passed, self.verdict.ground_truth.passed, held, self.verdict.word


@asynccontextmanager
async def bench(task: Task, folder: Path, bases: Mapping[str, str] | None = None) -> AsyncIterator[Bench]:
    async with LocalEngine(Store(folder / "store")) as engine:
        snapshot = await engine.snapshot(snapshot_spec(task, bases))
        async with open_examiner(engine, task) as examiner:
            yield Bench(engine, task, snapshot, examiner, folder)


async def run(
    bench: Bench, agent: str | Sequence[str], *, roots: tuple[Path, ...] = (), seed: int | None = None
) -> Ran:
    """Agent, capture, trusting check beside what lives, then the graders' rooms."""
    plan = plan_agent(agent, bench.task, roots)
    grader = Grader(bench.engine, bench.task, bench.snapshot, examiner=bench.examiner, seed=seed)
    preparing = asyncio.create_task(grader.prepare())
    binds = [Bind(source, target) for source, target in plan.binds]
    state = bench.folder / f"state-{grader.seed}.tar.zst"
    async with bench.engine.fork(bench.snapshot, limits=LIMITS, binds=binds) as box:
        finished = await (await box.start(Command(plan.argv, env=plan.env))).wait()
        alive = await box.processes()
        await box.freeze()
        capture = await box.capture(state)
        await box.thaw()
        await preparing
        trusting, grades = await grader.judge(box, finished, capture)
    facts = gather(
        bench.task,
        changes=capture.changes,
        alive=alive,
        views=grades.views,
        bare=grades.bare,
        agent_kind=plan.kind,
    )
    verdict = decide(trusting, grades.ground_truth, grades.held_out, findings(facts))
    state.unlink()
    return Ran(verdict, grades, capture, dict(grader.times))
