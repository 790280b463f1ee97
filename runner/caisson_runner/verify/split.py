"""Tests and the code they test in two rooms, for tasks that only scripts grade.

In one process code under test can be equal to everything, end the process with status 0, replace the test runner or
write the reward. Here the tests run in a room where none of it is ever imported; its modules answer from another room,
and only plain values cross. A test counts when the task's own solution passes it that way, so what cannot be split (an
object handed back and forth, a patched attribute) is told from what is wrong.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caisson_runner.boxes.engine import Bind, BoxLimits, Change, Command, Engine
from caisson_runner.boxes.store import Snapshot
from caisson_runner.tasks.agent import plan_agent
from caisson_runner.tasks.snapshot import box_limits
from caisson_runner.tasks.task import Task
from caisson_runner.verify.check import CaseResult, Check, shown
from caisson_runner.verify.pipe import Pipe, PipeBroken
from caisson_runner.verify.rooms import program
from caisson_runner.verify.scripts import ABOVE, MAX_REPORTS, TESTS, upload
from caisson_runner.verify.steering import RUNNERS

MAX_LOADABLE = 5_000
EVERYTHING = ("*",)
"""Too many to name: nothing outside /usr and /tests is loaded."""
CALL_S = 60.0  # one call of the code under test
FOLDERS = ("", "src", "lib")  # of the workspace, where tests look for modules
_solved: dict[tuple[str, str], frozenset[str] | None] = {}
"""By snapshot and task digest: the tests that the task's own solution passes when it is split, once per process."""
_asking: dict[tuple[str, str], asyncio.Lock] = {}


@dataclass(frozen=True, slots=True)
class Told:
    """What one split run reported: outcomes by test, and whether it came to its end."""

    outcomes: Mapping[str, frozenset[str]]
    complete: bool
    trouble: str = ""

    def passed(self, test: str) -> bool:
        return self.complete and self.outcomes.get(test, frozenset()) == frozenset({"passed"})


def modules(task: Task, changes: Sequence[Change]) -> tuple[str, ...]:
    """Names of top-level modules the agent wrote or changed where tests look for them. Pure."""
    tops = {f"{root.strip('/')}/{folder}".rstrip("/") for root in (task.workspace, task.workdir) for folder in FOLDERS}
    names = set()
    for change in changes:
        path = change.path.decode("utf-8", "surrogateescape").lstrip("/")
        for top in tops:
            rest = path[len(top) + 1 :] if path.startswith(top + "/") else ""
            first, _, below = rest.partition("/")
            module = first if below else first.removesuffix(".py")
            python = path.endswith((".py", ".so")) and change.how != "removed"
            if python and module.isidentifier() and not (not below and first == module):
                names.add(module)
    names -= set(FOLDERS)
    return tuple(sorted(names - RUNNERS - sys.stdlib_module_names - {"conftest", "setup"}))


def loadable(changes: Sequence[Change]) -> tuple[str, ...]:
    """Files the agent wrote that an interpreter could load; `EVERYTHING` for too many or too odd ones. Pure."""
    found = tuple(
        "/" + change.path.decode("utf-8", "surrogateescape").lstrip("/")
        for change in changes
        if change.how != "removed" and change.path.endswith((b".py", b".pyc", b".so"))
    )
    odd = any(not name.isprintable() or len(name) > 4096 for name in found)  # a line of the protocol could not hold it
    return EVERYTHING if odd or len(found) > MAX_LOADABLE else found


async def run_split(
    engine: Engine,
    snapshot: Snapshot,
    task: Task,
    tests: Path,
    state: Path,
    changes: Sequence[Change],
    limits: BoxLimits,
    timeout_s: float,
) -> Told:
    """One directory of tests against one final state."""
    word = secrets.token_hex(16)
    outcomes: dict[str, set[str]] = {}
    restore = [*task.extras.restore, TESTS, "/logs/verifier", *ABOVE]
    path = [f"{task.workspace}/{folder}".rstrip("/") for folder in FOLDERS]
    python = ("/usr/bin/python3", "-I", "-B", "-c")
    async with (
        engine.fork(snapshot, state=state, restore=restore, limits=limits) as judge,
        engine.fork(snapshot, state=state, restore=restore, limits=limits) as subject,
    ):
        await upload(judge, tests, TESTS)
        source = program("values") + "\n"
        asked = Pipe(
            await judge.start(
                Command((*python, source + program("split")), cwd=task.workspace, wall_s=timeout_s, stdin_pipe=True)
            )
        )
        mirror = Pipe(
            await subject.start(
                Command((*python, source + program("mirror")), cwd=task.workspace, wall_s=timeout_s, stdin_pipe=True)
            )
        )
        await mirror.send({"path": path})
        told = {"written": list(loadable(changes))}
        await asked.send({"word": word, "tests": TESTS, "modules": list(modules(task, changes)), **told})
        trouble, complete, number = "", False, 0
        try:
            async with asyncio.timeout(timeout_s):
                while number < MAX_REPORTS:
                    number += 1
                    message = await asked.receive(timeout_s)
                    if message.get("word") != word:
                        continue
                    if "end" in message:
                        complete = True
                        break
                    if "ask" in message:
                        await asked.send(await _forward(mirror, message["ask"], number))
                        continue
                    outcomes.setdefault(str(message.get("test")), set()).add(str(message.get("outcome"))[:40])
        except PipeBroken as failure:
            trouble = f"the split run was lost: {failure}"
        except TimeoutError:
            trouble = f"the split run took longer than {timeout_s:g} s"
    return Told({test: frozenset(seen) for test, seen in outcomes.items()}, complete, trouble)


async def _forward(mirror: Pipe, request: Any, number: int) -> dict[str, Any]:
    """One question to the agent's code. What comes back is data, or the news that there is nobody to answer."""
    try:
        await mirror.send({**request, "id": number})
        answer = await mirror.receive(CALL_S)
    except PipeBroken as failure:
        return {"lost": shown(str(failure).encode(), 200)}
    if answer.pop("id", None) != number:
        mirror.broken = "an answer to no question"
        return {"lost": mirror.broken}
    return answer


async def solution_passes(
    engine: Engine, snapshot: Snapshot, task: Task, tests: Path, limits: BoxLimits, timeout_s: float
) -> frozenset[str] | None:
    """The tests that the task's own solution passes when it is split; None when the task has no solution."""
    key = (snapshot.id, task.digest())
    async with _asking.setdefault(key, asyncio.Lock()):
        if key not in _solved:
            _solved[key] = await _solve(engine, snapshot, task, tests, limits, timeout_s)
    return _solved[key]


async def _solve(
    engine: Engine, snapshot: Snapshot, task: Task, tests: Path, limits: BoxLimits, timeout_s: float
) -> frozenset[str] | None:
    if task.solution_dir is None:
        return None
    plan = plan_agent("oracle", task)
    with TemporaryDirectory(prefix="caisson-split-") as folder:
        state = Path(folder) / "upper.tar.zst"
        binds = [Bind(source, target) for source, target in plan.binds]
        async with engine.fork(snapshot, limits=box_limits(task), binds=binds) as box:
            await (await box.start(Command(plan.argv, env=dict(plan.env), cwd=task.workdir))).wait()
            await box.freeze()
            capture = await box.capture(state)
        told = await run_split(engine, snapshot, task, tests, state, capture.changes, limits, timeout_s)
    return frozenset(test for test in told.outcomes if told.passed(test))


def judge_split(told: Told, sure: frozenset[str] | None) -> Check | None:
    """What a split run says. None when nothing could be split. `passed` is None when nothing says what can be. Pure."""
    tests = sorted(sure) if sure is not None else sorted(told.outcomes)
    if not tests:
        return None
    results = []
    for test in tests:
        seen = ", ".join(sorted(told.outcomes.get(test, {"was not reported"})))
        results.append(CaseResult(test, told.passed(test), "" if told.passed(test) else seen))
    failed = [result for result in results if not result.passed]
    reason = f"{len(results) - len(failed)} of {len(results)} tests pass with the code under test in another room"
    if failed:
        reason += f"; {shown(failed[0].call.encode(), 120)}: {failed[0].reason}"
    if told.trouble:
        reason += f" ({told.trouble})"
    if sure is None and any("unsplit" in outcomes for outcomes in told.outcomes.values()):
        return Check("ground_truth", None, reason, "split", tuple(results))
    return Check("ground_truth", not failed, reason, "split", tuple(results), evidence={"calibrated": sure is not None})


async def split_check(
    engine: Engine, snapshot: Snapshot, task: Task, state: Path, changes: Sequence[Change], limits: BoxLimits
) -> Check | None:
    """The split view of tests/test.sh: None when the task's tests are no pytest files or the agent wrote no module."""
    tests = task.tests_dir
    if (
        tests is None
        or not modules(task, changes)
        or not any((*tests.glob("**/test_*.py"), *tests.glob("**/*_test.py")))
    ):
        return None
    timeout_s = task.harbor.verifier_timeout_s
    begun = asyncio.get_running_loop().time()
    sure = await solution_passes(engine, snapshot, task, tests, limits, timeout_s)
    told = await run_split(engine, snapshot, task, tests, state, changes, limits, timeout_s)
    check = judge_split(told, sure)
    if check is None:
        return None
    wall = asyncio.get_running_loop().time() - begun
    return Check("ground_truth", check.passed, check.reason, "split", check.cases, None, wall, check.evidence)
