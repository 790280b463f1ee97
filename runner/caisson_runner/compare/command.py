"""The body of `caisson-run compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from caisson_runner.compare import plan, report, rig
from caisson_runner.compare.errors import CompareError
from caisson_runner.compare.routes import load_routes, select
from caisson_runner.interrupt import run_interruptible
from caisson_runner.report.text import one_line

PAGE: Final = Path("docs/compare.md")


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)


def compare_command(
    globs: Sequence[str], quick: bool, loads: bool, sockets: Sequence[Path], as_json: bool, write_docs: bool
) -> int:
    """Run it and print it. 1 where a result differs from the declared one."""
    routes = select(load_routes(rig.routes_folder()), globs, quick)
    if write_docs and not PAGE.parent.is_dir():
        raise CompareError(f"no folder {PAGE.parent} here: run --write-docs in the repository")
    eyes, absent = plan.find_eyes(quick, sockets)
    for text in absent:
        _say(f"absent: {text}")
    if not eyes:
        raise CompareError("no witness can be had here: start `tracerd serve`, or install strace")
    _say(f"{len(routes)} routes under {', '.join(eye.name for eye in eyes)}, and under none for the time")
    try:
        found = run_interruptible(plan.run(routes, eyes, absent, quick=quick, loads=loads and not globs, say=_say))
    except BaseExceptionGroup as group:
        first = group.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    if write_docs:
        PAGE.write_text(report.as_markdown(found), encoding="utf-8")
        _say(f"{PAGE} is written")
    said = report.complaints(found)
    if as_json:
        json.dump({**report.as_json(found), "differences": said}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        from caisson_runner.report.terminal import grid

        for table in report.grids(found):
            grid(table.title, table.columns, table.rows, table.notes)
    for text in said:
        _say(f"differs: {text}")
    return 0 if found.good else 1
