"""`caisson-run regrade`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caisson_runner.commands.common import OUT, WORD_CODES, OutExists, emit, finish, program, result_json, say, stamp
from caisson_runner.report.text import printable
from caisson_runner.results import Result


def regrade_command(
    path: Path,
    task_name: str,
    out: Path | None,
    seed: int | None,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    rules: Sequence[Path],
    as_json: bool,
) -> int:
    """`caisson-run regrade`."""
    from caisson_runner.bundle import Bundle
    from caisson_runner.regrade import NotRegradable, regrade
    from caisson_runner.results import read_result
    from caisson_runner.session import open_session
    from caisson_runner.tasks import load_task
    from caisson_runner.verify.grader import draw_seed

    Bundle.open(path, verify=True)
    try:
        before = read_result(path)
    except (ValueError, KeyError) as error:
        raise NotRegradable(f"{path} is not of a run on a task ({error}): there is nothing to grade in it") from None
    task = load_task(task_name)
    for warning in task.warnings:
        say(f"warning: {warning}")
    target = out or OUT / f"{task.id}-regrade-{stamp()}"
    if target.exists():
        raise OutExists(f"{target}: is there already; choose another --out or remove it")

    async def work() -> Result:
        async with open_session("none", bases, engine, docker_host, rules) as session:
            return await regrade(session, path, task, target, draw_seed() if seed is None else seed)

    result = finish(work())
    if as_json:
        emit(result_json(result) | {"derived_from": result_json(before)})
    else:
        from caisson_runner.report.tables import word

        print(f"before        {before.word}: {printable(before.detail)}")
        print(f"now           {result.word}: {printable(result.detail)}")
        print(f"ground truth  {word(before.ground_truth)} → {word(result.ground_truth)}")
        print(f"held-out      {word(before.held_out)} → {word(result.held_out)} (seed {result.seed})")
        print(f"evidence      {result.bundle}  ({program()} bundle show {result.bundle})")
    return WORD_CODES[result.word]
