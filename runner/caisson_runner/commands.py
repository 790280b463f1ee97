"""The bodies of `caisson-run`'s commands: they join the parts and print. Each returns the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from caisson_runner.errors import CaissonError
from caisson_runner.interrupt import run_interruptible
from caisson_runner.report.text import one_line, printable, seconds, size
from caisson_runner.results import Result

T = TypeVar("T")
OUT = Path("caisson-out")
WORD_CODES = {"pass": 0, "fail": 1, "infra": 3, "void": 4}


class OutExists(CaissonError):
    """The folder that was to be written to is there already."""

    exit_code: ClassVar[int] = 2


class NotABundle(CaissonError):
    """No bundle at the path given."""

    exit_code: ClassVar[int] = 2


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; of a group of errors the first of ours, else of the system's, is the one that the user hears."""
    try:
        return run_interruptible(work)
    except BaseExceptionGroup as group:
        for kind in (CaissonError, OSError):
            error: BaseException | None = group.subgroup(kind)
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if error is not None:
                raise error from None
        raise


def _emit(document: object) -> None:
    json.dump(document, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)


def result_json(result: Result) -> dict[str, Any]:
    """A result for machines."""
    return {
        "id": result.id,
        "task": result.task,
        "agent": result.behaviour,
        "verdict": result.word,
        "trusting": result.trusting,
        "ground_truth": result.ground_truth,
        "held_out": result.held_out,
        "lie": result.lie,
        "state_digest": result.state_digest,
        "seed": result.seed,
        "wall_s": result.wall_s,
        "witness": result.witness,
        "detail": result.detail,
        "bundle": str(result.bundle),
    }


def run_command(
    task_name: str,
    agent: str | None,
    command: Sequence[str],
    agent_dir: Path | None,
    out: Path | None,
    seed: int | None,
    witness: str,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    as_json: bool,
) -> int:
    """`caisson-run run`."""
    from dataclasses import replace

    from caisson_runner.run import run_one
    from caisson_runner.session import BadOption, open_session
    from caisson_runner.tasks import load_task, plan_agent
    from caisson_runner.verify.grader import draw_seed

    if (agent is None) == (not command):
        raise BadOption("say who the agent is: either -a NAME (oracle, nop, a behaviour), or a command after --")
    task = load_task(task_name)
    for warning in task.warnings:
        _say(f"warning: {warning}")
    plan = plan_agent(agent if agent is not None else list(command), task)
    if agent_dir is not None:
        plan = replace(plan, binds=(*plan.binds, (agent_dir.resolve(), "/agent")))
    name = f"{task.id}-{plan.name}-{datetime.now():%Y%m%d-%H%M%S}"
    target = out or OUT / name
    if target.exists():
        raise OutExists(f"{target}: is there already; choose another --out or remove it")

    async def work() -> Result:
        async with open_session(witness, bases, engine, docker_host) as session:
            _say(f"box: {session.engine.name}; witness: {session.witness.name} ({session.witness.reason})")
            return await run_one(session, task, plan, target.name, target, draw_seed() if seed is None else seed)

    result = _run(work())
    if as_json:
        _emit(result_json(result))
    else:
        from caisson_runner.report.tables import word

        print(f"verdict       {result.word}: {printable(result.detail)}")
        print(f"trusting      {word(result.trusting)}")
        print(f"ground truth  {word(result.ground_truth)}")
        print(f"held-out      {word(result.held_out)} (seed {result.seed})")
        print(f"evidence      {result.bundle}  (caisson-run bundle show {result.bundle})")
    return WORD_CODES[result.word]


def _newest(name: str) -> Path:
    found = sorted(OUT.glob(f"{name}-*/plan.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else OUT / name


def _progress(total: int, already: int) -> tuple[Callable[[Result], None], Callable[[], None]]:
    """A bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        from caisson_runner.report.terminal import console

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=console(stderr=True), transient=True)
        bar.start()
        job = bar.add_task("runs", total=total, completed=already)
        return (lambda result: bar.update(job, advance=1, description=printable(result.id, 40))), bar.stop
    count = already

    def line(result: Result) -> None:
        nonlocal count
        count += 1
        if count % 10 == 0 or count == total:
            _say(f"{count} of {total} runs done")

    return line, lambda: None


def suite_command(
    name: str,
    parallel: int,
    attempts: int,
    include: Sequence[str],
    exclude: Sequence[str],
    limit: int | None,
    out: Path | None,
    resume: bool,
    witness: str,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    as_json: bool,
) -> int:
    """`caisson-run suite`."""
    import time

    from caisson_runner import suite as suites
    from caisson_runner.made import load_made_suite
    from caisson_runner.run import run_one, run_shared
    from caisson_runner.session import BadOption, open_session

    suite = load_made_suite(name, _say)
    suite.check()
    if resume:
        folder = out or _newest(suite.name)
        runs = suites.read_plan(folder, suite)
    else:
        folder = out or OUT / f"{suite.name}-{datetime.now():%Y%m%d-%H%M%S}"
        if folder.exists() and any(folder.iterdir()):
            raise OutExists(f"{folder}: is not empty; use --resume to go on there, or another --out")
        runs = suites.plan(suite, attempts, include, exclude, limit)
        if not runs:
            raise BadOption("no run is left after -i, -x and -l; `caisson-run suite NAME --json` lists the ids")
        suites.write_plan(folder, suite, runs)
    kept = {run.id: result for run in runs if (result := suites.done(folder, run)) is not None}
    todo = [run for run in runs if run.id not in kept]
    begun = time.monotonic()

    async def work() -> list[Result]:
        async with open_session(witness, bases, engine, docker_host) as session:
            _say(f"{suite.title}: {len(runs)} runs" + (f", {len(kept)} of them done before" if kept else ""))
            _say(f"box: {session.engine.name}; witness: {session.witness.name} ({session.witness.reason})")
            tell, stop = _progress(len(runs), len(kept))

            async def make(run: suites.Planned) -> Result:
                task = suite.task(run.task)
                agents = [suite.plan(agent, task) for agent in run.agents]
                target = folder / "runs" / run.id
                if run.shared:
                    return await run_shared(session, task, agents, run.id, target, run.seed)
                return await run_one(session, task, agents[0], run.id, target, run.seed)

            try:
                return await suites.carry_out(todo, make, parallel, tell)
            finally:
                stop()

    made = {result.id: result for result in (_run(work()) if todo else [])}
    results = [made.get(run.id) or kept[run.id] for run in runs]
    took = time.monotonic() - begun
    surprises = suites.unexpected(suite, runs, results) if not (include or exclude or limit) and attempts == 1 else []
    tables = suites.suite_tables(suite, runs, results)
    witnesses = sorted({result.witness for result in results})
    document = {
        "suite": suite.name,
        "witness": witnesses,
        "wall_s": round(took, 3),
        "made": len(made),
        "runs": [result_json(result) for result in results],
        "tables": [
            {"id": t.id, "title": t.title, "columns": t.columns, "rows": t.rows, "notes": t.notes} for t in tables
        ],
        "unexpected": surprises,
    }
    (folder / "suite.json").write_text(json.dumps(document, indent=1) + "\n")
    if as_json:
        _emit(document)
    else:
        from caisson_runner.report.terminal import print_table

        for table in tables:
            print_table(table)
        rate = f", {60 * len(made) / took:.0f} runs a minute" if made and took > 0 else ""
        print(f"{len(made)} runs made in {seconds(took)}{rate}; witness: {', '.join(witnesses)}")
        print(f"evidence: {folder}/runs/*  (caisson-run bundle show {folder}/runs/{runs[-1].id})")
    for line in surprises:
        _say(f"not as the suite expects: {line}")
    if any(result.word == "infra" for result in results):
        return 3
    return 1 if surprises else 0


def attach_command(
    container: str, out: Path | None, seconds_: float | None, cgroup: str, docker_host: str, as_json: bool
) -> int:
    """`caisson-run attach`."""
    from caisson_runner.attach import record
    from caisson_runner.session import BadOption

    if bool(container) == bool(cgroup):
        raise BadOption("say what to attach to: either a CONTAINER or --cgroup PATH")
    target = out or OUT / f"attach-{''.join(c if c.isalnum() else '-' for c in container or 'cgroup')}-{_stamp()}"
    if target.exists():
        raise OutExists(f"{target}: is there already; choose another --out or remove it")
    host = docker_host or (os.environ.get("DOCKER_HOST", "") if os.geteuid() == 0 and container else "")
    _say(f"attaching to {container or cgroup}; it ends with the container" + ("" if seconds_ else ", or with Ctrl-C"))
    found = _run(record(target, container, cgroup=cgroup, docker_host=host, seconds=seconds_))
    if as_json:
        _emit({"bundle": str(target), **found})
        return 0
    from caisson_runner.bundle.attached import lines_of

    for line in lines_of(found, everything=False):
        print(line)
    print(f"evidence      {target}  (caisson-run bundle show {target})")
    return 0


def _stamp() -> str:
    return f"{datetime.now():%Y%m%d-%H%M%S}"


def bundle_show_command(path: Path, everything: bool, as_json: bool) -> int:
    """`caisson-run bundle show`."""
    from caisson_runner.bundle import Bundle, render, summary_json

    bundle = Bundle.open(path)
    if as_json:
        _emit(summary_json(bundle, everything))
    else:
        render(bundle, everything)
    return 0


def bundle_verify_command(path: Path) -> int:
    """`caisson-run bundle verify`."""
    from caisson_runner.bundle import Bundle

    bundle = Bundle.open(path)
    count = bundle.verify()
    print(f"{path}: {count} files, all as the manifest says")
    return 0


def snapshot_create_command(
    task_name: str | None, rootfs: Path | None, label: str, bases: Sequence[str], as_json: bool
) -> int:
    """`caisson-run snapshot create`."""
    from dataclasses import replace

    from caisson_runner.boxes.local import LocalEngine
    from caisson_runner.boxes.store import SnapshotSpec
    from caisson_runner.session import BadOption
    from caisson_runner.tasks import load_task
    from caisson_runner.tasks.snapshot import parse_bases, snapshot_spec

    if (task_name is None) == (rootfs is None):
        raise BadOption("say what to make it from: either -p TASK or --rootfs TAR")
    if task_name is not None:
        spec = snapshot_spec(load_task(task_name), parse_bases(tuple(bases)))
        spec = replace(spec, label=label or spec.label)
    else:
        assert rootfs is not None
        spec = SnapshotSpec(base=rootfs, label=label)

    async def work() -> Any:
        async with LocalEngine() as engine:
            return await engine.snapshot(spec)

    made = _run(work())
    if as_json:
        _emit({"id": made.id, "label": spec.label})
    else:
        print(made.id)
    return 0


def snapshot_list_command(as_json: bool) -> int:
    """`caisson-run snapshot list`."""
    from caisson_runner.boxes.errors import SnapshotChanged
    from caisson_runner.boxes.store import Snapshot, Store

    store = Store()

    def content(snapshot: Snapshot) -> int | None:
        try:
            return sum(entry.size for entry in store.index(snapshot).values())
        except SnapshotChanged as damage:
            _say(str(damage))
            return None

    rows: list[dict[str, Any]] = [
        {
            "id": snapshot.id,
            "label": snapshot.label,
            "base": snapshot.base,
            "bytes": content(snapshot),
            "created": datetime.fromtimestamp(snapshot.created).astimezone().isoformat(timespec="seconds"),
        }
        for snapshot in store.list()
    ]
    if as_json:
        _emit(rows)
        return 0
    from caisson_runner.report.terminal import grid

    grid(
        "Snapshots",
        ("id", "label", "base", "size", "made"),
        [
            (
                r["id"][:12],
                r["label"],
                r["base"][:24],
                "changed!" if r["bytes"] is None else size(r["bytes"]),
                r["created"],
            )
            for r in rows
        ],
    )
    return 0


def snapshot_prune_command(ids: Sequence[str], everything: bool, as_json: bool) -> int:
    """`caisson-run snapshot prune`."""
    from caisson_runner.boxes.errors import SnapshotInUse
    from caisson_runner.boxes.store import Store
    from caisson_runner.session import BadOption

    if ids and everything:
        raise BadOption("either ids of snapshots or --all, not both")
    store = Store()
    removed: list[str] = []
    names = [snapshot.id for snapshot in store.list()] if everything else list(ids)
    for name in names:
        try:
            removed += store.prune([name])
        except SnapshotInUse as busy:
            if not everything:
                raise
            _say(str(busy))
    if not ids and not everything:
        removed = [*store.prune()]
    if as_json:
        _emit({"removed": removed})
    else:
        print(f"{len(removed)} snapshot(s) removed")
    return 0


def doctor_command(as_json: bool) -> int:
    """`caisson-run doctor`."""
    from caisson_runner.boxes.probe import probe
    from caisson_runner.witness import choose

    requirements = asyncio.run(asyncio.to_thread(probe))
    witness = choose("auto")
    usable = all(r.ok for r in requirements)
    if as_json:
        _emit(
            {
                "usable": usable,
                "requirements": [
                    {"name": r.name, "ok": r.ok, "detail": r.detail, "remedy": r.remedy} for r in requirements
                ],
                "witness": {"name": witness.name, "reason": witness.reason},
            }
        )
        return 0 if usable else 3
    from caisson_runner.report.terminal import grid

    rows = [(r.name, "ok" if r.ok else "missing", r.detail, "" if r.ok else r.remedy) for r in requirements]
    grid("This host", ("what", "state", "found", "what to do"), rows)
    print(f"witness: {witness.name} ({printable(witness.reason)})")
    print("boxes can run here" if usable else "boxes cannot run here; see above")
    return 0 if usable else 3
