"""`caisson-run run`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caisson_runner.commands.common import OUT, WORD_CODES, OutExists, emit, finish, program, result_json, say, stamp
from caisson_runner.report.text import printable
from caisson_runner.results import Result


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
    gate: Mapping[str, Any],
    rules: Sequence[Path],
    as_json: bool,
) -> int:
    """`caisson-run run`."""
    from dataclasses import replace

    from caisson_runner.gate import GateOptions
    from caisson_runner.run import run_one
    from caisson_runner.session import BadOption, open_session
    from caisson_runner.tasks import load_task, plan_agent
    from caisson_runner.verify.grader import draw_seed

    if (agent is None) == (not command):
        raise BadOption("say who the agent is: either -a NAME (oracle, nop, a behaviour), or a command after --")
    task = load_task(task_name)
    for warning in task.warnings:
        say(f"warning: {warning}")
    plan = plan_agent(agent if agent is not None else list(command), task)
    if agent_dir is not None:
        plan = replace(plan, binds=(*plan.binds, (agent_dir.resolve(), "/agent")))
    name = f"{task.id}-{plan.name}-{stamp()}"
    target = out or OUT / name
    if target.exists():
        raise OutExists(f"{target}: is there already; choose another --out or remove it")

    async def work() -> Result:
        async with open_session(witness, bases, engine, docker_host, rules, GateOptions(**gate)) as session:
            say(f"box: {session.engine.name}; witness: {session.witness.name} ({session.witness.reason})")
            return await run_one(session, task, plan, target.name, target, draw_seed() if seed is None else seed)

    result = finish(work())
    if as_json:
        emit(result_json(result))
    else:
        from caisson_runner.report.tables import word

        print(f"verdict       {result.word}: {printable(result.detail)}")
        print(f"trusting      {word(result.trusting)}")
        print(f"ground truth  {word(result.ground_truth)}")
        print(f"held-out      {word(result.held_out)} (seed {result.seed})")
        if told := _ended(result.bundle):
            print(f"agent         {told}")
        print(f"evidence      {result.bundle}  ({program()} bundle show {result.bundle})")
    return WORD_CODES[result.word]


def _ended(bundle: Path) -> str:
    """How the agent's command ended, where it did not end well: a mistyped command is no wrong answer."""
    try:
        end = json.loads((bundle / "run.json").read_bytes()).get("agent_end") or {}
    except OSError:
        return ""
    outcome, code, detail = end.get("outcome"), end.get("exit_code"), str(end.get("detail") or "")
    if outcome == "exited" and not code and not detail:
        return ""
    words = f"exited with {code}" if outcome == "exited" else str(outcome)
    return printable(f"{words}: {detail}" if detail else words)
