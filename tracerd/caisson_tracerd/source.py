"""What programs are made of, and how their pins go: known to the loader, and all of it that the daemon needs.

Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

API = 1
"""Of the records and of what lies pinned."""


def source_files(folder: Path) -> list[Path]:
    """Every source, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".c", ".h"))


def source_digest(folder: Path) -> dict[str, str]:
    """sha256 of each source by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in source_files(folder)
    }


def remove_pins(pins: Path) -> None:
    """Unpin everything below; the kernel detaches what nobody holds."""
    for top, folders, files in os.walk(pins, topdown=False):
        for name in files:
            (Path(top) / name).unlink()
        for name in folders:
            (Path(top) / name).rmdir()
    pins.rmdir()
