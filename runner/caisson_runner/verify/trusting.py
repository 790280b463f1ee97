"""What a naive harness would say: its tests in the agent's box, beside the agent's processes. Kept to measure lies."""

from __future__ import annotations

import asyncio

from caisson_runner.boxes.engine import Command, Finished
from caisson_runner.boxes.errors import BoxError
from caisson_runner.tasks.task import Task
from caisson_runner.verify.check import Check
from caisson_runner.verify.pipe import ended
from caisson_runner.verify.reward import REWARD_JSON, REWARD_TXT, solved
from caisson_runner.verify.scripts import Room, run_test_sh


def claimed(stdout: bytes, words: tuple[str, ...]) -> str | None:
    """The first of the words the agent's output holds, in any case; the article's harness believes it."""
    text = stdout.lower()
    return next((word for word in words if word.encode() in text), None)


async def trusting(box: Room, task: Task, agent: Finished) -> Check:
    """Run the trusting check in the agent's box. Whatever happens in that box is the naive harness's answer."""
    begun = asyncio.get_running_loop().time()
    rule = task.extras.trusting
    try:
        if rule is not None:
            command = Command(rule.command, cwd=task.workspace, wall_s=rule.timeout_s)
            finished = await (await box.exec(command)).wait()
            passed, how, reason = finished.ok, "command", f"{rule.command[0]} {ended(finished)}"
            if not passed and (word := claimed(agent.stdout, rule.claim)) is not None:
                passed, how, reason = True, "claim", f"the agent said {word!r} ({reason})"
        elif task.tests_dir is not None:  # Harbor's shared mode
            for path in (REWARD_JSON, REWARD_TXT):
                await (await box.exec(Command(("/bin/rm", "-f", path), cwd="/"))).wait()
            rewards, evidence = await run_test_sh(box, task)
            passed, how = rewards is not None and solved(rewards), "harbor"
            reason = f"tests/test.sh gave {rewards}" if rewards is not None else str(evidence["reward"])
        else:
            passed, how, reason = agent.ok, "exit", f"the agent {ended(agent)}"
    except BoxError as failure:
        passed, how, reason = None, "command", str(failure)
    wall = asyncio.get_running_loop().time() - begun
    return Check("trusting", passed, reason, how, wall_s=wall)
