"""Grading a kept final state with other checks, without running the agent again.

The bundle is verified first: what is graded is what was signed. Its final state is put into clean forks of the
snapshot that the agent's box was forked from, and the new checks run there. The trusting check was made in the agent's
own box and cannot be made again: its word is carried over. Findings are made anew from the record. What comes of it is
a bundle of its own, with the old one's record, state and logs, that says which bundle it is derived from; the old one
is only read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from caisson_runner.boxes.engine import Change
from caisson_runner.boxes.errors import BoxError, SnapshotNotFound
from caisson_runner.boxes.store import Snapshot, SnapshotSpec
from caisson_runner.bundle import RUN, UPPER, VERDICT, Bundle, BundleError, BundleWriter, network, unescape
from caisson_runner.bundle.check import Checked, verify
from caisson_runner.bundle.digests import entry_of_bytes
from caisson_runner.bundle.statement import STATEMENT
from caisson_runner.bundle.writer import COVERAGE
from caisson_runner.errors import CaissonError
from caisson_runner.results import RUN_SCHEMA, Result, read_result
from caisson_runner.run import agent_records
from caisson_runner.session import Session
from caisson_runner.tasks import Task
from caisson_runner.verify.check import Check
from caisson_runner.verify.decide import Verdict, decide, truth
from caisson_runner.verify.errors import VerifyError
from caisson_runner.verify.findings import findings, gather
from caisson_runner.verify.grader import Grader, Grades

_NEW: Final = frozenset({RUN, VERDICT})
"""Files that the new bundle does not take over from the old one."""


class NotRegradable(CaissonError):
    """The bundle holds nothing that could be graded, or not what is needed for it."""

    exit_code: ClassVar[int] = 2


async def regrade(session: Session, path: Path, task: Task, out: Path, seed: int) -> Result:
    """Grade the final state in the bundle ``path`` with the checks of ``task``; leave a new bundle at ``out``.

    Raises `BundleDamaged` when the bundle is not what was signed, `NotRegradable` when it holds no final state.
    Failures of our side while grading become the verdict `infra`.
    """
    begun, started = time.monotonic(), datetime.now(UTC)
    checked = verify(path)
    bundle = Bundle.open(path)
    run = _run(bundle)
    snapshot = await _snapshot(session, run, task)
    trouble, grades = "", None
    with BundleWriter(out) as writer:
        try:
            grader = Grader(session.engine, task, snapshot, examiner=await session.examiner(task), seed=seed)
            grades = await grader.grade(bundle.root / UPPER, _changes(bundle))
        except* (BoxError, VerifyError) as failures:
            trouble = _said(failures)
        verdict = _verdict(session, bundle, run, task, grades, trouble)
        for name in bundle.files:
            if name not in _NEW:
                shutil.copyfile(bundle.root / name, writer.path(name))
        writer.adopt(bundle.index())
        wall_s = round(time.monotonic() - begun, 4)
        writer.add_json(RUN, _described(run, bundle, checked, task, snapshot, out.name, seed, started, wall_s))
        writer.add_json(VERDICT, verdict.to_json() | {"detail": verdict.reason})
    return read_result(out)


def _changes(bundle: Bundle) -> list[Change]:
    return [
        Change(one.path, one.how, one.kind, one.mode, one.size, one.sha256, one.target)  # type: ignore[arg-type]
        for one in bundle.changes()
    ]


def _said(group: BaseExceptionGroup[Any]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _run(bundle: Bundle) -> dict[str, Any]:
    run = bundle.json(RUN) if bundle.has(RUN) else {}
    if not isinstance(run, dict) or run.get("schema") != RUN_SCHEMA:
        raise NotRegradable(f"{bundle.root} is not of a run on a task: there is nothing to grade in it")
    if not bundle.has(UPPER):
        raise NotRegradable(f"{bundle.root} keeps no final state ({UPPER}): there is nothing to grade in it")
    if run.get("shared_slots"):
        raise NotRegradable(f"{bundle.root} is of a box that several agents shared: no final state is one agent's")
    return run


async def _snapshot(session: Session, run: Mapping[str, Any], task: Task) -> Snapshot:
    """The snapshot that the agent's box was forked from: from the store, or made again from the task."""
    told = run.get("snapshot")
    wanted = str(told.get("id") or "") if isinstance(told, dict) else ""
    if wanted and isinstance(told, dict):
        try:
            return await session.engine.snapshot(SnapshotSpec(base=wanted, workdir=str(told.get("workdir") or "/app")))
        except SnapshotNotFound:
            pass
    made = await session.snapshot(task)
    if wanted and made.id != wanted:
        raise NotRegradable(
            f"the state stands on snapshot {wanted[:12]}, which is not here, and {task.id} makes {made.id[:12]}: "
            "make it again from the task of that run (caisson-run snapshot create -p TASK)"
        )
    return made


def _verdict(
    session: Session, bundle: Bundle, run: Mapping[str, Any], task: Task, grades: Grades | None, trouble: str
) -> Verdict:
    trusting = _carried(bundle)
    if grades is None:
        return decide(trusting, Check("ground_truth", None, trouble or "the state was not graded"), None)
    records = list(bundle.records())
    harness = {pid for pid in run.get("harness_pids") or () if isinstance(pid, int)}
    first = run.get("first_pid")
    own = list(agent_records(records, harness, first if isinstance(first, int) else 0))
    mine = {record.seq for record in own}
    begin = own[0].seq if own else 0
    agent = run.get("agent")
    gathered = gather(
        task,
        records=own,
        changes=list(bundle.changes()),
        coverage=bundle.json(COVERAGE) if bundle.has(COVERAGE) else None,
        alive=_alive(run),
        views=grades.views,
        bare=grades.bare,
        split=grades.split,
        agent_kind=str(agent.get("kind") if isinstance(agent, dict) else ""),
        trusting=trusting,
        true=truth(grades.ground_truth, grades.held_out),
        harness=[record for record in records if record.seq > begin and record.seq not in mine],
        future=grades.future,
        stdout=bundle.read("logs/agent.stdout") if bundle.has("logs/agent.stdout") else b"",
        gate=network.events(bundle.root / network.EVENTS) if bundle.has(network.EVENTS) else (),
    )
    return decide(trusting, grades.ground_truth, grades.held_out, findings(gathered, session.rules))


def _alive(run: Mapping[str, Any]) -> list[tuple[int, bytes]]:
    """Processes that were left when the agent had ended."""
    try:
        return [(int(one["pid"]), unescape(one["name"])) for one in run.get("left_running") or ()]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotRegradable(f"{RUN} does not say which processes were left: {type(error).__name__}") from None


def _carried(bundle: Bundle) -> Check | None:
    """What the naive harness had said."""
    verdict = bundle.json(VERDICT) if bundle.has(VERDICT) else {}
    old = verdict.get("trusting") if isinstance(verdict, dict) else None
    if not isinstance(old, dict):
        return None
    passed = old.get("passed")
    return Check("trusting", passed if isinstance(passed, bool) else None, str(old.get("reason")), "carried over")


def _described(
    run: Mapping[str, Any],
    bundle: Bundle,
    checked: Checked,
    task: Task,
    snapshot: Snapshot,
    run_id: str,
    seed: int,
    started: datetime,
    wall_s: float,
) -> dict[str, Any]:
    """The old ``run.json`` with what is new, and where it comes from. How the agent's run went stays as it was."""
    try:
        statement = entry_of_bytes((bundle.root / STATEMENT).read_bytes()).sha256
    except OSError as error:
        raise BundleError(f"{STATEMENT} in {bundle.root} cannot be read: {error.strerror}") from None
    old = run.get("task")
    return dict(run) | {
        "id": run_id,
        "task": task.to_json(),
        "snapshot": {"id": snapshot.id, "workdir": snapshot.workdir},
        "seed": seed,
        "derived_from": {
            "how": "regrade",
            "run": run.get("id"),
            "task": old,
            "seed": run.get("seed"),
            "verdict": checked.statement["predicate"]["caisson"]["verdict"],
            "manifest_sha256": checked.statement["subject"][0]["digest"]["sha256"],
            "statement_sha256": statement,
            "keyid": checked.key.keyid,
            "regraded": started.isoformat(timespec="milliseconds"),
            "wall_s": wall_s,
        },
    }
