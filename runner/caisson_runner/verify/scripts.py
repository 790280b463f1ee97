"""Checks that must run as scripts: pytest directories and Harbor's tests/test.sh, in clean forks of the final state.

The weaker kind of check, because code under test shares a process with it; what it can and cannot show is said in
docs/verdicts.md. No exit status is believed anywhere here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from caisson_runner.boxes.engine import BoxLimits, Command, Engine, Outcome, Process
from caisson_runner.boxes.errors import BoxError
from caisson_runner.boxes.store import Snapshot
from caisson_runner.tasks.extras import ScriptRule
from caisson_runner.tasks.harbor import resolve_env
from caisson_runner.tasks.task import Task, walk_files
from caisson_runner.verify.check import CaseResult, Check, shown
from caisson_runner.verify.pipe import Pipe, PipeBroken, ended
from caisson_runner.verify.reward import (
    MAX_REWARD_FILE,
    REWARD_JSON,
    REWARD_TXT,
    RewardInvalid,
    read_rewards,
    solved,
)
from caisson_runner.verify.rooms import program
from caisson_runner.verify.steering import CONFIGURATION

TESTS = "/tests"
ABOVE = tuple(f"/{name}" for name in sorted({*CONFIGURATION, "pyproject.toml", "setup.cfg"}))
"""Where pytest looks for its configuration when it is given a path below /tests; no workspace is there."""
MAX_COMPARED = 500  # files of a task's tests
MAX_REPORTS = 100_000  # lines one run of tests may report


class Room(Protocol):
    """What a check needs of a box: the agent's own, behind whatever records it, or a fork."""

    async def exec(self, command: Command) -> Process: ...
    async def put(self, path: str, data: bytes, mode: int = 0o644) -> None: ...
    async def get(self, path: str, limit: int = 1 << 20) -> bytes: ...


async def upload(box: Room, directory: Path, target: str) -> None:
    """Copy a directory of the task into a box, after the agent."""
    for file in walk_files(directory):
        executable = bool(file.stat().st_mode & 0o100) or file.name == "test.sh"
        await box.put(f"{target}/{file.relative_to(directory)}", file.read_bytes(), 0o755 if executable else 0o644)


def judge_reports(expected: Sequence[str], reports: Mapping[str, set[str]], complete: bool) -> list[CaseResult]:
    """Every expected test must be reported passed and never anything else, in a run that came to its end. Pure."""
    results = []
    for test in expected:
        outcomes = reports.get(test, set())
        if outcomes == {"passed"} and complete:
            results.append(CaseResult(test, True))
        elif not outcomes:
            results.append(CaseResult(test, False, "was not reported"))
        elif outcomes == {"passed"}:
            results.append(CaseResult(test, False, "passed, but the run never came to its end"))
        else:
            results.append(CaseResult(test, False, ", ".join(sorted(outcomes - {"passed"}))))
    return results


async def run_pytest(
    engine: Engine,
    snapshot: Snapshot,
    task: Task,
    rule: ScriptRule,
    state: Path | None,
    restore: Sequence[str],
    limits: BoxLimits,
) -> Check:
    """One directory of tests against one view of the final state."""
    begun = asyncio.get_running_loop().time()
    word = secrets.token_hex(16)
    reports: dict[str, set[str]] = {}
    trouble, complete = "", False
    async with engine.fork(snapshot, state=state, restore=[*restore, TESTS], limits=limits) as box:
        await upload(box, rule.tests, TESTS)
        command = Command(
            ("/usr/bin/python3", "-I", "-B", "-c", program("tests")),
            cwd=task.workspace,
            wall_s=rule.timeout_s,
            stdin_pipe=True,
        )
        pipe = Pipe(await box.start(command))
        path = [task.workspace if entry in (".", "") else f"{task.workspace}/{entry}" for entry in rule.path]
        await pipe.send({"word": word, "tests": TESTS, "path": path})
        try:
            async with asyncio.timeout(rule.timeout_s):
                for _ in range(MAX_REPORTS):
                    report = await pipe.receive(rule.timeout_s)
                    if report.get("word") != word:
                        continue
                    if "end" in report:
                        complete = True
                        break
                    reports.setdefault(str(report.get("test")), set()).add(str(report.get("outcome"))[:40])
        except PipeBroken as failure:
            trouble = f"the test run was lost: {failure}"
        except TimeoutError:
            trouble = f"the test run took longer than {rule.timeout_s:g} s"
    results = judge_reports(rule.expected, reports, complete)
    failed = [result for result in results if not result.passed]
    reason = f"{len(results) - len(failed)} of {len(results)} expected tests passed"
    if failed:
        reason += f"; {shown(failed[0].call.encode(), 120)} {failed[0].reason}"
    if trouble:
        reason += f" ({trouble})"
    wall = asyncio.get_running_loop().time() - begun
    return Check(rule.role, not failed, f"{rule.name}: {reason}", "scripts", tuple(results), wall_s=wall)


async def _file(box: Room, path: str) -> bytes | None:
    try:
        return await box.get(path, MAX_REWARD_FILE + 1)
    except BoxError:
        return None


async def run_test_sh(box: Room, task: Task) -> tuple[dict[str, float] | None, dict[str, Any]]:
    """Harbor's verifier in this box: upload, run, read the reward files. The exit status is ignored, as in Harbor.

    Returns None for no valid reward, whatever the files say when the script was killed or ran out of time.
    """
    assert task.tests_dir is not None
    env = resolve_env(task.harbor.verifier_env, task.path / "task.toml", "verifier.env")
    await upload(box, task.tests_dir, TESTS)
    command = Command((f"{TESTS}/test.sh",), env=env, cwd=task.workdir, wall_s=task.harbor.verifier_timeout_s)
    finished = await (await box.exec(command)).wait()
    evidence: dict[str, Any] = {"test_sh": ended(finished), "wall_s": round(finished.wall_s, 3)}
    try:
        if finished.outcome is not Outcome.EXITED:
            raise RewardInvalid(f"tests/test.sh {ended(finished)} and did not come to its end")
        rewards = read_rewards(await _file(box, REWARD_JSON), await _file(box, REWARD_TXT))
    except RewardInvalid as failure:
        return None, {**evidence, "reward": str(failure), "output": shown(finished.stderr[-600:], 300)}
    return rewards, {**evidence, "rewards": rewards}


async def altered(box: Room, directory: Path) -> list[str]:
    """Which of the uploaded tests are no longer as they were uploaded. Of very many only the first are looked at."""
    names = []
    for file in list(walk_files(directory))[:MAX_COMPARED]:
        name = f"{TESTS}/{file.relative_to(directory)}"
        wanted = file.read_bytes()
        try:
            same = await box.get(name, len(wanted) + 1) == wanted
        except BoxError:
            same = False
        if not same:
            names.append(name)
    return names


async def run_harbor(
    engine: Engine,
    snapshot: Snapshot,
    task: Task,
    role: str,
    state: Path | None,
    restore: Sequence[str],
    limits: BoxLimits,
) -> Check:
    """tests/test.sh in a clean fork of the final state, with /tests and /logs/verifier as the snapshot has them."""
    begun = asyncio.get_running_loop().time()
    places = (TESTS, "/logs/verifier", *ABOVE)
    async with engine.fork(snapshot, state=state, restore=[*restore, *places], limits=limits) as box:
        rewards, evidence = await run_test_sh(box, task)
        assert task.tests_dir is not None
        changed = await altered(box, task.tests_dir) if rewards is not None and solved(rewards) else []
    wall = asyncio.get_running_loop().time() - begun
    if rewards is None:
        # Is it the agent's state that leaves the verifier without a reward, or the verifier itself?
        async with engine.fork(snapshot, limits=limits) as box:
            pristine, _ = await run_test_sh(box, task)
        ours = pristine is None
        where = "on the untouched snapshot too" if ours else "though it does on the untouched snapshot"
        reason = f"tests/test.sh gave no valid reward ({evidence['reward']}), {where}"
        return Check(role, None if ours else False, reason, "harbor", evidence=evidence, wall_s=wall)
    if changed:
        # Does the verifier rewrite its own tests, or did the code under test?
        async with engine.fork(snapshot, limits=limits) as box:
            await run_test_sh(box, task)
            changed = sorted(set(changed) - set(await altered(box, task.tests_dir)))
    if changed:
        shown_names = ", ".join(shown(name.encode(), 80) for name in changed[:3])
        reason = f"tests/test.sh gave {rewards}, but the tests were changed while they ran: {shown_names}"
        return Check(role, False, reason, "harbor", evidence={**evidence, "changed": changed[:20]}, wall_s=wall)
    passed = solved(rewards)
    return Check(role, passed, f"tests/test.sh gave {rewards}", "harbor", evidence=evidence, wall_s=wall)
