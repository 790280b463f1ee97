"""What can go wrong with an export."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class ExportError(CaissonError):
    """The bundle cannot be written in that format, or not to that place."""

    exit_code: ClassVar[int] = 2
