"""Compiling the one text on several cores: each process makes some of the programs, the others are no programs to it.

The compiler's time is half reading and half making code, and it uses one core. A function that is ``static`` and
called by nobody costs next to nothing, so a part of the text is the text with ``static`` before the programs of other
parts. Each process tells instructions and shapes of maps (`stored.taken`); the kernel is given them afterwards, by one.

Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

if __package__:
    from caisson_tracerd import stored
else:  # beside the loader, which runs without the package
    import stored  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore

_MOST = 4
_PROGRAM = re.compile(
    r"^(?:RAW_TRACEPOINT_PROBE\((\w+)\)|CHANGE_(?:BELOW|OF)\((\w+)|int ((?:stage|fexit|security)_\w+)\()"
)


class NotCompiled(Exception):
    """What the compiler's process said."""


def part(text: str, own: set[str]) -> str:
    """The text with these functions as its only programs."""

    def line(text: str) -> str:
        found = _PROGRAM.match(text)
        if found is None:
            return text
        point, change, name = found.groups()
        name = f"raw_tracepoint__{point}" if point else f"security__{change}" if change else name
        return text if name in own else f"static {text}"

    return "\n".join(map(line, text.split("\n")))


def compiled(
    compile_text: Callable[[str], Callable[[str], bytes]], text: str, functions: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What `stored.taken` tells of all ``functions`` (by label), compiled on as many cores as help.

    ``compile_text`` returns what gives the code of a function. NotCompiled when a part could not be.
    """
    labels = list(functions)
    count = min(_MOST, len(os.sched_getaffinity(0)), len(labels))
    shares = [labels[start::count] for start in range(count)]
    workers = [_started(compile_text, text, {label: functions[label] for label in share}) for share in shares]
    programs: dict[str, Any] = {}
    maps: dict[str, dict[str, Any]] = {}
    problems = []
    for pid, pipe in workers:
        with open(pipe, "rb") as answer:
            told = answer.read()
        os.waitpid(pid, 0)
        found: dict[str, Any] = json.loads(told) if told else {"problem": "the compiler's process ended"}
        if "problem" in found:
            problems.append(found["problem"])
            continue
        programs.update(found["programs"])
        maps.update(found["maps"])
    if problems:
        raise NotCompiled(problems[0])
    return {label: programs[label] for label in labels}, maps


def _started(
    compile_text: Callable[[str], Callable[[str], bytes]], text: str, functions: Mapping[str, str]
) -> tuple[int, int]:
    """(process, pipe it will answer on)."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        end_with_parent(parent)
        code = compile_text(part(text, set(functions.values())))
        programs, maps = stored.taken({label: code(name) for label, name in functions.items()})
        answer: dict[str, Any] = {"programs": programs, "maps": maps}
    except BaseException as problem:
        answer = {"problem": f"{problem}" or type(problem).__name__}
    with open(writing, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)


def end_with_parent(parent: int) -> None:
    """One that is killed while it waits for us must leave nothing that goes on."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was killed before we came here
        os._exit(3)
