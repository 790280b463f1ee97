"""Calls of the agent's code in a room of its own. What comes back are answers, compared here, outside."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caisson_runner.boxes.engine import Command, Process
from caisson_runner.tasks.extras import SubjectRule
from caisson_runner.verify import canon
from caisson_runner.verify.check import Case, CaseResult, shown
from caisson_runner.verify.pipe import Pipe, PipeBroken
from caisson_runner.verify.rooms import program

Judge = Callable[[Case, Mapping[str, Any]], Awaitable[tuple[bool, str]]]


def compare(case: Case, answer: Mapping[str, Any]) -> tuple[bool, str]:
    """Equality of canonical texts, or the name of the exception among the raised one's classes. Pure."""
    if "unplain" in answer:
        return False, f"answered {shown(str(answer['unplain']).encode(), 100)}, which has no JSON form"
    if "raised" in answer:
        names = answer["raised"]
        names = [str(name) for name in names] if isinstance(names, list) else []
        if case.raises is not None and case.raises in names:
            return True, ""
        text = shown(str(answer.get("text", "")).encode(), 120)
        wanted = f"{case.raises} " if case.raises is not None else ""
        return False, f"raised {shown(','.join(names[:1]).encode(), 60)} instead of {wanted or 'answering'}: {text}"
    if "value" not in answer:
        return False, "an answer without a value"
    if case.raises is not None:
        return False, f"answered instead of raising {case.raises}"
    given = canon.dumps(answer["value"])
    if given == canon.dumps(case.expect):
        return True, ""
    return False, f"answered {shown(given, 100)} instead of {shown(canon.dumps(case.expect), 100)}"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds on the host's clock, for the report of a run."""

    start_s: float
    calls_s: float


async def ask(
    process: Process, rule: SubjectRule, workspace: str, cases: Sequence[Case], judge: Judge
) -> tuple[list[CaseResult], Times]:
    """Put every case to one subject process, in order. A process that dies or babbles fails its call and the rest."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    pipe = Pipe(process)
    results: list[CaseResult] = []
    trouble = await _begin(pipe, rule, workspace)
    started = loop.time()
    for case in cases:
        if trouble is None and loop.time() - started > rule.total_timeout_s:
            trouble = f"all calls together took longer than {rule.total_timeout_s:g} s"
        if trouble is not None:
            results.append(CaseResult(case.text(), False, trouble))
            continue
        try:
            answer = await _call(pipe, rule, case)
        except PipeBroken as failure:
            results.append(CaseResult(case.text(), False, str(failure)))
            trouble = f"not asked: the subject was lost before ({failure})"
            continue
        passed, reason = await judge(case, answer) if case.checked else compare(case, answer)
        results.append(CaseResult(case.text(), passed, "" if passed else reason or "judged wrong"))
    pipe.close()
    return results, Times(started - begun, loop.time() - started)


async def _begin(pipe: Pipe, rule: SubjectRule, workspace: str) -> str | None:
    """Import the module. Returns what went wrong, None when it is ready."""
    identity = secrets.token_hex(8)
    path = [workspace if entry in (".", "") else f"{workspace}/{entry}" for entry in rule.path]
    await pipe.send({"id": identity, "module": rule.module, "path": path})
    try:
        hello = await pipe.receive(rule.start_timeout_s)
    except PipeBroken as failure:
        return f"{rule.module} could not be imported: {failure}"
    if hello.get("id") != identity or hello.get("ready") is not True:
        return shown(str(hello.get("broken", "a first answer that is none")).encode())
    return None


async def _call(pipe: Pipe, rule: SubjectRule, case: Case) -> dict[str, Any]:
    identity = secrets.token_hex(8)
    request = {"id": identity, "function": case.function, "args": list(case.args), "kwargs": dict(case.kwargs)}
    await pipe.send(request)
    answer = await pipe.receive(rule.call_timeout_s)
    if answer.pop("id", None) != identity:
        pipe.broken = "an answer to no question"
        raise PipeBroken(pipe.broken)
    return answer


def command() -> Command:
    """The subject's program: the distribution's Python, isolated, without its site directories."""
    return Command(("/usr/bin/python3", "-I", "-S", "-B", "-c", program("subject")), stdin_pipe=True)
