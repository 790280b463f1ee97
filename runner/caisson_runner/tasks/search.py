"""Where the scenarios that come with Caisson lie: in the repository, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

import caisson_runner


def scenarios_root() -> Path:
    """The directory with `tasks/`, `behaviours/` and `suites/`."""
    package = Path(caisson_runner.__file__).resolve().parent
    installed = package / "_scenarios"
    return installed if installed.is_dir() else package.parents[1] / "scenarios"
