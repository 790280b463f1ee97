"""`caisson-run bundle diff`."""

from __future__ import annotations

from pathlib import Path

from caisson_runner.bundle import Bundle
from caisson_runner.bundle.difference import difference
from caisson_runner.commands.common import emit


def bundle_diff_command(a: Path, b: Path, everything: bool, as_json: bool) -> int:
    """0 when nothing differs, 1 when something does, as diff(1)."""
    from caisson_runner.report.difference import as_json as document
    from caisson_runner.report.difference import lines

    found = difference(Bundle.open(a), Bundle.open(b), everything)
    names = (str(a), str(b))
    if as_json:
        emit(document(found, names))
    else:
        for line in lines(found, names, everything):
            print(line)
    return 0 if found.same else 1
