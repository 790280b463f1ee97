"""What the commands share: where results go, how work is run to its end, how things are said."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from caisson_runner.errors import CaissonError
from caisson_runner.interrupt import run_interruptible
from caisson_runner.report.text import one_line
from caisson_runner.results import Result

T = TypeVar("T")
OUT = Path("caisson-out")
WORD_CODES = {"pass": 0, "fail": 1, "infra": 3, "void": 4}


class OutExists(CaissonError):
    """The folder that was to be written to is there already."""

    exit_code: ClassVar[int] = 2


def finish(work: Coroutine[Any, Any, T]) -> T:
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


def emit(document: object) -> None:
    """Print one JSON document for machines."""
    json.dump(document, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """Tell the person one line, on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def program() -> str:
    """How this command can be called again from here: by name when it is on PATH, else by its place."""
    name = Path(sys.argv[0])
    if name.name != "caisson-run" or shutil.which("caisson-run") is not None:
        return "caisson-run"
    here = name.absolute()
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def stamp() -> str:
    """The local time, for folder names."""
    return f"{datetime.now():%Y%m%d-%H%M%S}"


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
