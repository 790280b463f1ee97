"""`caisson-run bundle show` and `verify`."""

from __future__ import annotations

from pathlib import Path

from caisson_runner.commands.common import emit


def bundle_show_command(path: Path, everything: bool, as_json: bool) -> int:
    """`caisson-run bundle show`."""
    from caisson_runner.bundle import Bundle, render, summary_json

    bundle = Bundle.open(path)
    if as_json:
        emit(summary_json(bundle, everything))
    else:
        render(bundle, everything)
    return 0


def bundle_verify_command(path: Path) -> int:
    """`caisson-run bundle verify`."""
    from caisson_runner.bundle import Bundle

    bundle = Bundle.open(path)
    count = bundle.verify()
    print(f"{path}: {count} files, all as the manifest says")
    return 0
