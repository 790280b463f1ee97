"""`caisson-run suite`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caisson_runner.commands.common import OUT, OutExists, emit, finish, program, result_json, say, stamp
from caisson_runner.report.text import printable, seconds
from caisson_runner.results import Result


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
            say(f"{count} of {total} runs done")

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
    gate: Mapping[str, Any],
    rules: Sequence[Path],
    as_json: bool,
) -> int:
    """`caisson-run suite`."""
    import time
    from contextlib import AsyncExitStack

    from caisson_runner import suite as suites
    from caisson_runner.gate import GateOptions
    from caisson_runner.made import load_made_suite
    from caisson_runner.run import run_one, run_shared
    from caisson_runner.session import BadOption, open_session
    from caisson_runner.world import served

    suite = load_made_suite(name, say)
    suite.check()
    if resume:
        folder = out or _newest(suite.name)
        runs = suites.read_plan(folder, suite)
    else:
        folder = out or OUT / f"{suite.name}-{stamp()}"
        if folder.exists() and any(folder.iterdir()):
            raise OutExists(f"{folder}: is not empty; use --resume to go on there, or another --out")
        runs = suites.plan(suite, attempts, include, exclude, limit)
        if not runs:
            raise BadOption("no run is left after -i, -x and -l; ids are as in E1-cheat-conftest")
        suites.write_plan(folder, suite, runs)
    kept = {run.id: result for run in runs if (result := suites.done(folder, run)) is not None}
    todo = [run for run in runs if run.id not in kept]
    begun = time.monotonic()

    wanted = {run.experiment for run in todo}
    worlds = [one.world for one in suite.experiments if one.world is not None and one.id in wanted]

    async def work() -> list[Result]:
        async with AsyncExitStack() as stack:
            found = [pair for world in worlds for pair in stack.enter_context(served(world))]
            options = GateOptions(**{**gate, "resolve": (*gate.get("resolve", ()), *found)})
            session = await stack.enter_async_context(open_session(witness, bases, engine, docker_host, rules, options))
            say(f"{suite.title}: {len(runs)} runs" + (f", {len(kept)} of them done before" if kept else ""))
            say(f"box: {session.engine.name}; witness: {session.witness.name} ({session.witness.reason})")
            tell, stop = _progress(len(runs), len(kept))

            async def make(run: suites.Planned) -> Result:
                task, agents = suite.resolve(run.experiment, run.task, run.agents)
                target = folder / "runs" / run.id
                if run.shared:
                    return await run_shared(session, task, agents, run.id, target, run.seed)
                return await run_one(session, task, agents[0], run.id, target, run.seed)

            try:
                return await suites.carry_out(todo, make, parallel, tell)
            finally:
                stop()

    made = {result.id: result for result in (finish(work()) if todo else [])}
    results = [made.get(run.id) or kept[run.id] for run in runs]
    took = time.monotonic() - begun
    # counts hold for whole experiments only; a catalogue's rows stand each for itself
    partly = bool(include or exclude or limit) or attempts != 1
    surprises = suites.unexpected(suite, runs, results, counts=not partly)
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
        emit(document)
    else:
        from caisson_runner.report.terminal import print_table

        for table in tables:
            print_table(table)
        rate = f", {60 * len(made) / took:.0f} runs a minute" if made and took > 0 else ""
        print(f"{len(made)} runs made in {seconds(took)}{rate}; witness: {', '.join(witnesses)}")
        print(f"evidence: {folder}/runs/*  ({program()} bundle show {folder}/runs/{runs[-1].id})")
    for line in surprises:
        say(f"not as the suite expects: {line}")
    if any(result.word == "infra" for result in results):
        return 3
    return 1 if surprises else 0
