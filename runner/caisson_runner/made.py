"""Tasks that are made at set-up time, because their files belong to others: a suite's `made_by` script makes them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from caisson_runner.boxes.store import home
from caisson_runner.errors import CaissonError
from caisson_runner.tasks import Suite, load_suite


class NotMade(CaissonError):
    """A suite's tasks could not be made; the script's own last line says why."""

    exit_code: ClassVar[int] = 3


def load_made_suite(name: str, say: Callable[[str], None]) -> Suite:
    """Load a suite; when it has a `made_by` script, run that first (it does nothing when all is made already)."""
    suite = load_suite(name)
    if suite.made_by is None:
        return suite
    target = home() / "made" / suite.name
    target.mkdir(parents=True, exist_ok=True)
    # The interpreter of this command: the script is standard library alone and may call `pip` through it.
    process = subprocess.Popen(
        [sys.executable, str(suite.made_by), str(target)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
    )
    last = ""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            last = line.strip() or last
            say(f"{suite.name}: {line.strip()}")
    except BaseException:
        process.terminate()
        raise
    finally:
        code = process.wait()
    if code != 0:
        raise NotMade(f"{suite.made_by.name} ended with {code}: {last}")
    return load_suite(name, made=Path(target))
