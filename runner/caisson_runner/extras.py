"""How to get what an optional part needs. Not by our own name: the package index has another project under it."""

from __future__ import annotations

import shlex
import sys


def install(extra: str) -> str:
    """The command that installs what the extra asks for, into the very Python that runs this."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        asked = requires("caisson") or []
    except PackageNotFoundError:  # run from a tree that was never installed
        asked = []
    marker = f"extra == '{extra}'"
    wanted = [
        line.partition(";")[0].strip() for line in asked if line.partition(";")[2].strip().replace('"', "'") == marker
    ]
    pip = shlex.join([sys.executable, "-m", "pip", "install"])
    return f"{pip} {shlex.join(wanted)}" if wanted else f"{pip} -e '.[{extra}]' in a clone of Caisson"
