"""One run from fork to bundle.

fork → the agent works → freeze → capture the final state → (the trusting check in that same box ‖ the true checks in
rooms of their own) → kill → seal the record → findings → verdict → bundle.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caisson_gate.errors import GateError
from caisson_proto.record import Kind, Record

from caisson_runner.boxes.engine import Bind, Box, Capture, Command, Finished, Outcome, Process
from caisson_runner.boxes.errors import BoxError, StateTooLarge
from caisson_runner.boxes.local import uncancelled
from caisson_runner.boxes.store import Snapshot
from caisson_runner.bundle import BundleWriter, escape, network
from caisson_runner.bundle.canonical import dump_line
from caisson_runner.gate import Plan, Way
from caisson_runner.pids import Found, tie
from caisson_runner.results import RUN_SCHEMA, Result, SharedSlot, read_result
from caisson_runner.session import Session
from caisson_runner.tasks import AgentPlan, Task
from caisson_runner.tasks.snapshot import box_limits
from caisson_runner.verify.check import Check
from caisson_runner.verify.decide import Verdict, decide, truth
from caisson_runner.verify.errors import VerifyError
from caisson_runner.verify.findings import Ruleset, findings, gather
from caisson_runner.verify.grader import Grader, Grades, ungradable
from caisson_runner.witness import Limits, Watch
from caisson_runner.witness.errors import WitnessError

INSTRUCTION = "/instruction.md"


class AgentNotStarted(BoxError):
    """The box has not what our own agents need (a shell, an interpreter): nothing is known about any work."""


class Watched:
    """The agent's box with its witness: every command started through it is in the record."""

    def __init__(self, box: Box, watch: Watch, env: Mapping[str, str] = MappingProxyType({})) -> None:
        """``env`` is for every command: what makes the box trust the gate."""
        self.box, self.watch, self._env = box, watch, env
        self.harness_pids: set[int] = set()
        self.first_pid = 0
        """Of the first agent's command."""
        self._started = False

    async def agent(self, command: Command) -> Process:
        """Start the agent's command (in a shared box the next agent's)."""
        wrap = self.watch.wrap_exec() if self._started else self.watch.wrap
        self._started = True
        process = await self.box.start(self._with_env(command), admit=self.watch.admit, wrap=wrap)
        self.first_pid = self.first_pid or process.pid
        return process

    async def exec(self, command: Command) -> Process:
        """Start a command of the naive harness in the same box. It is in the record, told apart from the agent."""
        process = await self.box.exec(self._with_env(command), admit=self._admit_harness, wrap=self.watch.wrap_exec())
        self.harness_pids.add(process.pid)
        return process

    def _with_env(self, command: Command) -> Command:
        return replace(command, env={**self._env, **command.env}) if self._env else command

    async def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file into the box."""
        await self.box.put(path, data, mode)

    async def get(self, path: str, limit: int = 1 << 20) -> bytes:
        """Read a file of the box."""
        return await self.box.get(path, limit)

    async def _admit_harness(self, pid: int) -> None:
        self.harness_pids.add(pid)
        await self.watch.admit(pid)


def agent_records(records: Sequence[Record], harness: set[int], first_pid: int = 0) -> Iterator[Record]:
    """The records that are the agent's: not those of the naive harness's commands and their children.

    What lies before the first record of ``first_pid``, the first agent's command, made the box (a container's runtime
    works in the container's cgroup).
    """
    inside = set(harness)
    begin = next((place for place, record in enumerate(records) if record.pid == first_pid), 0)
    for record in records[begin:]:
        if record.pid in inside:
            if record.kind is Kind.FORK:
                inside.add(record.args[0])
            continue
        yield record


@dataclass(slots=True)
class _Made:
    """What a run has brought so far; a bundle is written from it even when our side broke in the middle."""

    finished: Finished | None = None
    capture: Capture | None = None
    alive: Sequence[tuple[int, bytes]] = ()
    trusting: Check | None = None
    grades: Grades | None = None
    coverage: dict[str, Any] | None = None
    records: Sequence[Record] = ()
    first_pid: int = 0
    snapshot: Snapshot | None = None
    way: Way | None = None
    gate: Sequence[dict[str, Any]] = ()
    tied: Sequence[Found] = ()
    """The gate's events, and which process each of them is about."""
    trouble: str = ""

    def read_gate(self) -> None:
        """Once the gate is closed and the record is sealed."""
        if self.way is not None:
            self.gate = list(network.events(self.way.folder / "events.jsonl"))
            self.tied = list(tie(self.gate, self.records))


def _command(task: Task, agent: AgentPlan) -> Command:
    return Command(agent.argv, env=dict(agent.env), cwd=task.workdir)


def _binds(task: Task, agents: Sequence[AgentPlan], plan: Plan | None) -> list[Bind]:
    pairs = dict.fromkeys(bind for agent in agents for bind in agent.binds)
    binds = [Bind(source, target) for source, target in pairs]
    if plan is not None:
        binds += plan.binds()
    if any(agent.kind == "command" for agent in agents):
        binds.append(Bind(task.path / "instruction.md", INSTRUCTION))
    return binds


async def _work(
    box: Box, watched: Watched, task: Task, agent: AgentPlan, grader: Grader, made: _Made, state: Path
) -> None:
    """Everything between fork and kill."""
    drawing = asyncio.create_task(grader.prepare())
    try:
        made.finished = await (await watched.agent(_command(task, agent))).wait()
        ended = made.finished
        refused = ended.outcome is Outcome.EXITED and ended.exit_code in (126, 127) and ended.detail
        if refused and agent.kind != "command":
            raise AgentNotStarted(f"{agent.name} could not be started in this box: {ended.detail}")
        await box.freeze()
        made.alive = await box.processes()
        try:
            made.capture = await box.capture(state)
        except StateTooLarge as failure:  # the agent's doing, so its result: not our failure
            made.grades = ungradable(failure)
            return
        if made.way is not None:
            await made.way.box.phase("verify")
        await box.thaw()
        await drawing
    finally:
        drawing.cancel()
        await uncancelled(asyncio.wait([drawing]))  # its box is gone then too
    made.trusting, made.grades = await grader.judge(watched, made.finished, made.capture)


def _verdict(task: Task, agent: AgentPlan, made: _Made, harness: set[int], rules: Ruleset) -> Verdict:
    if made.grades is None:
        return decide(made.trusting, Check("ground_truth", None, made.trouble or "the run was not graded"), None)
    grades = made.grades
    own = list(agent_records(made.records, harness, made.first_pid))
    mine = {record.seq for record in own}
    begin = own[0].seq if own else 0
    gathered = gather(
        task,
        records=own,
        changes=made.capture.changes if made.capture is not None else (),
        coverage=made.coverage,
        alive=made.alive,
        views=grades.views,
        bare=grades.bare,
        split=grades.split,
        agent_kind=agent.kind,
        trusting=made.trusting,
        true=truth(grades.ground_truth, grades.held_out),
        harness=[record for record in made.records if record.seq > begin and record.seq not in mine],
        future=grades.future,
        stdout=made.finished.stdout if made.finished is not None else b"",
        gate=made.gate,
        tied={one["seq"]: one["record"] for one in made.tied if "record" in one},
    )
    return decide(made.trusting, grades.ground_truth, grades.held_out, findings(gathered, rules))


async def run_one(session: Session, task: Task, agent: AgentPlan, run_id: str, out: Path, seed: int) -> Result:
    """Run one agent on one task in a fork of its own and leave a bundle at `out`.

    Failures of our side become the verdict `infra`; only mistakes of the user and cancellation are raised.
    """
    begun, started = time.monotonic(), datetime.now(UTC)
    made, harness = _Made(), set[int]()
    limits = box_limits(task)
    plan = await session.gates.plan(task)
    with BundleWriter(out) as bundle:
        phases: dict[str, float] = {}
        try:
            snapshot = made.snapshot = await session.snapshot(task)
            examiner = await session.examiner(task)
            phases["snapshot"] = time.monotonic() - begun
            grader = Grader(session.engine, task, snapshot, examiner=examiner, seed=seed)
            cgroup = Limits(limits.memory_bytes, limits.pids, limits.cpu_millis)
            async with session.witness.watch(run_id_for_box(run_id), cgroup) as watch:
                async with session.engine.fork(
                    snapshot,
                    limits=limits,
                    binds=_binds(task, [agent], plan),
                    network="none" if plan is None else "gate",
                    cgroup=watch.cgroup,
                ) as box:
                    phases["fork"] = time.monotonic() - begun
                    watched = Watched(box, watch, plan.env if plan is not None else {})
                    harness = watched.harness_pids
                    try:
                        async with session.gates.opened(plan, box, run_id, bundle.path) as made.way:
                            await _work(box, watched, task, agent, grader, made, bundle.path("state/upper.tar.zst"))
                            await box.kill()
                    except GateError as lost:  # whatever the agent did from then on, it did without a way out
                        if lost.exit_code == 2:
                            raise
                        made.grades, made.trouble = None, str(lost)
                        await box.kill()
                evidence = await watch.seal()
                made.coverage = evidence.coverage
                made.records = list(evidence.records())
                made.first_pid = watched.first_pid
                bundle.add_events(evidence.events_path)
            phases["work"] = time.monotonic() - begun
        except* (BoxError, GateError, WitnessError, VerifyError) as failures:
            made.trouble = _told(failures)
        made.read_gate()
        verdict = _verdict(task, agent, made, harness, session.rules)
        _write(bundle, session, task, [agent], run_id, seed, made, verdict, harness, begun, started, phases)
    return read_result(out)


async def run_shared(
    session: Session, task: Task, agents: Sequence[AgentPlan], run_id: str, out: Path, seed: int
) -> Result:
    """What a harness without forks does: all agents one after the other in one box, the workspace reset between them.

    Only the visible check is made, in that box. The result's `shared` has a slot for each agent.
    """
    begun, started = time.monotonic(), datetime.now(UTC)
    made, harness = _Made(), set[int]()
    plan = await session.gates.plan(task)
    slots: list[SharedSlot] = []
    limits = box_limits(task)
    with BundleWriter(out) as bundle:
        phases: dict[str, float] = {}
        try:
            snapshot = made.snapshot = await session.snapshot(task)
            cgroup = Limits(limits.memory_bytes, limits.pids, limits.cpu_millis)
            async with session.witness.watch(run_id_for_box(run_id), cgroup) as watch:
                async with session.engine.fork(
                    snapshot,
                    limits=limits,
                    binds=_shared_binds(agents) + (plan.binds() if plan is not None else []),
                    network="none" if plan is None else "gate",
                    cgroup=watch.cgroup,
                ) as box:
                    watched = Watched(box, watch, plan.env if plan is not None else {})
                    harness = watched.harness_pids
                    grader = Grader(session.engine, task, snapshot, seed=seed)
                    async with session.gates.opened(plan, box, run_id, bundle.path) as made.way:
                        for slot, agent in enumerate(agents):
                            await _reset_workspace(box, task)
                            made.finished = await (await watched.agent(_moved(_command(task, agent), slot))).wait()
                            check = await grader.trusting(watched, replace(made.finished, stdout=b""))
                            is_poison = agent.behaviour is not None and agent.behaviour.kind == "poison"
                            slots.append(SharedSlot(slot, agent.name, is_poison, check.passed is True))
                        await box.freeze()
                        made.capture = await box.capture(bundle.path("state/upper.tar.zst"))
                        await box.kill()
                evidence = await watch.seal()
                made.coverage = evidence.coverage
                bundle.add_events(evidence.events_path)
        except* (BoxError, GateError, WitnessError, VerifyError) as failures:
            made.trouble = _told(failures)
        made.read_gate()
        spurious = [slot for slot in slots if not slot.is_poison and not slot.passed]
        reason = made.trouble or f"{len(spurious)} honest slot(s) fail in the shared box"
        verdict = decide(None, Check("ground_truth", None if made.trouble else not spurious, reason, "shared"), None)
        _write(bundle, session, task, agents, run_id, seed, made, verdict, harness, begun, started, phases, slots)
    return read_result(out)


def _shared_binds(agents: Sequence[AgentPlan]) -> list[Bind]:
    return [
        Bind(source, f"/slots/{slot}{target}") for slot, agent in enumerate(agents) for source, target in agent.binds
    ]


def _moved(command: Command, slot: int) -> Command:
    """The command with its folder where the shared box shows it."""
    argv = tuple(
        f"/slots/{slot}{a}" if isinstance(a, str) and a.startswith(("/agent/", "/solution/")) else a
        for a in command.argv
    )
    return replace(command, argv=argv)


async def _reset_workspace(box: Box, task: Task) -> None:
    """Put the task's own files back, as a harness does between tasks. Nothing else is cleaned."""
    for target, source in task.files().items():
        await box.put(target, source.read_bytes(), 0o755 if source.stat().st_mode & 0o100 else 0o644)


def run_id_for_box(run_id: str) -> str:
    """A run's id as the daemon wants box ids: [a-z0-9-]{1,64}, unique among the boxes alive."""
    slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in run_id.lower())[:50].strip("-")
    return f"{slug or 'run'}-{secrets.token_hex(4)}"


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _told(failures: BaseExceptionGroup[Any]) -> str:
    """What the verdict `infra` says; a mistake of the user is raised instead."""
    first = _first(failures)
    if isinstance(first, GateError) and first.exit_code == 2:
        raise first from None
    return str(first)


def _outcome(finished: Finished | None) -> dict[str, Any]:
    if finished is None:
        return {"outcome": Outcome.LOST.value}
    return {
        "outcome": finished.outcome.value,
        "exit_code": finished.exit_code,
        "signal": finished.signal,
        "output_truncated": finished.truncated,
        "wall_s": round(finished.wall_s, 4),
        "detail": finished.detail,
    }


def _network(session: Session, way: Way | None) -> dict[str, Any]:
    """What the box's network was. ``sha256`` is of the last event, which pins every one before it."""
    if way is None:
        return {"mode": "none"}
    options = session.gates.options
    return {
        "mode": "gate",
        "policy": way.plan.source,
        "policy_sha256": way.box.policy_sha256,
        "record": way.plan.record,
        "replay": str(way.plan.replay) if way.plan.replay is not None else None,
        "resolve": list(options.resolve),
        "events": way.summary.get("events"),
        "sha256": way.summary.get("sha256"),
        "lost": way.lost or None,
    }


def _write(
    bundle: BundleWriter,
    session: Session,
    task: Task,
    agents: Sequence[AgentPlan],
    run_id: str,
    seed: int,
    made: _Made,
    verdict: Verdict,
    harness: set[int],
    begun: float,
    started: datetime,
    phases: dict[str, float],
    slots: Sequence[SharedSlot] = (),
) -> None:
    agent = agents[0]
    name = agent.name if len(agents) == 1 else f"{len(agents)} agents in one box"
    kind = agent.behaviour.kind if len(agents) == 1 and agent.behaviour is not None else ""
    run = {
        "schema": RUN_SCHEMA,
        "id": run_id,
        "task": task.to_json(),
        "agent": {"name": name, "kind": agent.kind, "behaviour_kind": kind, "argv": list(agent.argv)},
        "engine": session.engine.name,
        "network": _network(session, made.way),
        "witness": {"name": session.witness.name, "reason": session.witness.reason},
        "started": started.isoformat(timespec="milliseconds"),
        "wall_s": round(time.monotonic() - begun, 4),
        "phases_s": {phase: round(at, 4) for phase, at in phases.items()},
        "seed": seed,
        "limits": asdict(box_limits(task)),
        "agent_end": _outcome(made.finished),
        "left_running": [{"pid": pid, "name": escape(name)} for pid, name in made.alive],
        "harness_pids": sorted(harness),
        "first_pid": made.first_pid,
        "snapshot": {"id": made.snapshot.id, "workdir": made.snapshot.workdir} if made.snapshot is not None else {},
        "state": {"digest": made.capture.digest, "entries": made.capture.entries, "bytes": made.capture.size}
        if made.capture is not None
        else {},
        "shared_slots": [asdict(slot) for slot in slots],
    }
    bundle.add_json("run.json", run)
    rules = [{"file": name, "sha256": digest} for name, digest in session.rules.sources]
    bundle.add_json("verdict.json", verdict.to_json() | {"detail": verdict.reason, "rules": rules})
    bundle.add_json(
        "coverage.json",
        made.coverage or {"witness": session.witness.name, "complete": False, "reason": made.trouble or "no record"},
    )
    built = session.gates.build_events(task)
    if built is not None:
        bundle.add_file("gate/build.jsonl", built)
    if made.way is not None:
        with bundle.create("gate/pids.jsonl") as file:
            file.writelines(dump_line(one) for one in made.tied)
    if made.capture is not None:
        bundle.add_changes(made.capture.changes)
    if made.finished is not None:
        bundle.add_bytes("logs/agent.stdout", made.finished.stdout)
        bundle.add_bytes("logs/agent.stderr", made.finished.stderr)
