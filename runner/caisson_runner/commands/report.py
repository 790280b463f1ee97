"""`caisson-run report`."""

from __future__ import annotations

import sys
from pathlib import Path

from caisson_runner.commands.common import say
from caisson_runner.report.text import printable, size


def report_command(path: Path, out: Path | None) -> int:
    """`caisson-run report`. With damaged bundles in a suite the report is written, says so, and the exit code is 2."""
    from caisson_runner.report.html_page import place, report, write

    target = place(path, out)
    text, problems = report(path)
    write(target, text)
    for problem in problems:
        say(problem)
    print(f"{printable(str(target))}  {size(target.stat().st_size)}")
    sys.stdout.flush()
    return 2 if problems else 0
