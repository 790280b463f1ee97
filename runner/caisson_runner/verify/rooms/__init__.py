"""Programs that run inside rooms. Each is one file, needs the standard library alone and imports nothing of ours.

They are handed to the room's interpreter as text (`python3 -c`), so no file of the product lies in a room.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def program(name: str) -> str:
    """The source of one of them: `subject`, `examiner` or `tests`."""
    return files(__name__).joinpath(f"{name}.py").read_text(encoding="utf-8")
