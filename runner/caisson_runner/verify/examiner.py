"""The examiner's room: a sealed box with the task author's examiner in it and nothing of any agent.

One room serves every run of a task: cases are drawn by seed, and all that ever comes in from a run is an answer as
canonical JSON, only for cases whose author wants to judge them with check().
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from caisson_runner.boxes.engine import BoxLimits, Command, Engine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec
from caisson_runner.tasks.task import Task
from caisson_runner.verify.check import Case, shown
from caisson_runner.verify.errors import ExaminerFailed
from caisson_runner.verify.pipe import Pipe, PipeBroken
from caisson_runner.verify.rooms import program

ROOM = "/examiner"
CASE_KEYS = {"function", "args", "kwargs", "expect", "raises"}
_LIMITS = BoxLimits(memory_bytes=1 << 30, pids=32, disk_bytes=64 << 20, wall_s=0)


def read_case(value: Any, functions: tuple[str, ...], index: int, where: str) -> Case:
    """Check one case as the examiner gave it. Raises ExaminerFailed naming what is wrong with it."""

    def wrong(problem: str) -> ExaminerFailed:
        return ExaminerFailed(f"{where}: case {index}: {problem}")

    if not isinstance(value, dict):
        raise wrong("is no dict")
    if extra := sorted(set(value) - CASE_KEYS):
        raise wrong(f"has unknown keys {', '.join(extra)}")
    function, args, kwargs = value.get("function"), value.get("args", []), value.get("kwargs", {})
    if function not in functions:
        raise wrong(f"calls {shown(str(function).encode(), 60)}, which caisson.toml's subject.functions does not list")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise wrong("args must be a list and kwargs a dict with string keys")
    if "expect" in value and "raises" in value:
        raise wrong("has both expect and raises")
    raises = value.get("raises")
    if raises is not None and not isinstance(raises, str):
        raise wrong("raises must be the name of an exception class")
    checked = "expect" not in value and raises is None
    return Case(str(function), tuple(args), kwargs, value.get("expect"), raises, checked, index)


class Examiner:
    """A running examiner. Made by `open_examiner`; safe to share between runs."""

    def __init__(self, engine: Engine, task: Task, snapshot: Snapshot) -> None:
        assert task.extras.examiner is not None and task.extras.subject is not None
        self.rule, self.subject = task.extras.examiner, task.extras.subject
        self._engine, self._snapshot, self._task = engine, snapshot, task
        self._stack = AsyncExitStack()
        self._pipe: Pipe | None = None
        self._lock = asyncio.Lock()
        self._visible: tuple[Case, ...] | None = None

    async def _open(self) -> Pipe:
        if self._pipe is not None and self._pipe.broken is None:
            return self._pipe
        await self.close()
        box = await self._stack.enter_async_context(self._engine.fork(self._snapshot, limits=_LIMITS))
        command = Command(
            ("/usr/bin/python3", "-P", "-s", "-B", "-c", program("examiner"), f"{ROOM}/{self.rule.file.name}"),
            env={"PYTHONHASHSEED": "0"},  # the same seed must give the same cases
            cwd="/",
            stdin_pipe=True,
        )
        self._pipe = Pipe(await box.start(command), limit=4 << 20)
        return self._pipe

    async def close(self) -> None:
        """End the room. It opens again by itself when asked again."""
        self._pipe = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        where = self._task.path / "caisson.toml"
        async with self._lock:
            pipe = await self._open()
            try:
                async with asyncio.timeout(self.rule.timeout_s):
                    await pipe.send(request)
                    answers: list[dict[str, Any]] = []
                    while True:
                        answer = await pipe.receive(self.rule.timeout_s)
                        if "broken" in answer:
                            raise ExaminerFailed(f"{self.rule.file}: {shown(str(answer['broken']).encode())}")
                        if "case" not in answer:
                            return [*answers, answer]
                        answers.append(answer)
            except PipeBroken as failure:
                await self.close()
                raise ExaminerFailed(f"{where}: the examiner: {failure}") from None
            except TimeoutError:
                await self.close()
                raise ExaminerFailed(f"{where}: the examiner took longer than {self.rule.timeout_s:g} s") from None
            except BaseException:  # interrupted between request and answer: the next run must not read this one's
                await self.close()
                raise

    async def visible(self) -> tuple[Case, ...]:
        """The declared cases, the same for every run."""
        if self._visible is None:
            answers = await self._ask({"op": "visible"})
            self._visible = self._cases(answers)
        return self._visible

    async def generate(self, seed: int, count: int) -> tuple[Case, ...]:
        """`count` cases nobody has seen, the same for the same seed."""
        cases = self._cases(await self._ask({"op": "generate", "seed": seed, "count": count}))
        if len(cases) < count:
            raise ExaminerFailed(f"{self.rule.file}: generate() gave {len(cases)} of {count} cases")
        return cases

    def _cases(self, answers: list[dict[str, Any]]) -> tuple[Case, ...]:
        cases = tuple(
            read_case(answer["case"], self.subject.functions, index, str(self.rule.file))
            for index, answer in enumerate(answers[:-1])
        )
        if not cases:
            raise ExaminerFailed(f"{self.rule.file}: gave no case; nothing would be proved")
        return cases

    async def check(self, case: Case, answer: Mapping[str, Any]) -> tuple[bool, str]:
        """The author's own judgement on one answer."""
        plain = {"function": case.function, "args": list(case.args), "kwargs": dict(case.kwargs)}
        reply = (await self._ask({"op": "check", "case": plain, "answer": dict(answer)}))[-1]
        return reply.get("passed") is True, shown(str(reply.get("reason", "")).encode(), 200)


async def examiner_snapshot(engine: Engine, task: Task) -> Snapshot:
    """The room's snapshot: the host base and the examiner's directory."""
    assert task.extras.examiner is not None
    directory = task.extras.examiner.file.parent
    return await engine.snapshot(SnapshotSpec(base="host", files={ROOM: directory}, label=f"examiner/{task.id}"))


@asynccontextmanager
async def open_examiner(engine: Engine, task: Task) -> AsyncIterator[Examiner | None]:
    """The task's examiner, or None when it has none. Its room opens at the first question and ends with the block."""
    if task.extras.examiner is None:
        yield None
        return
    examiner = Examiner(engine, task, await examiner_snapshot(engine, task))
    try:
        yield examiner
    finally:
        await examiner.close()
