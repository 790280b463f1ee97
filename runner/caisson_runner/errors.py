"""The root of every part's exceptions."""

from __future__ import annotations

from typing import ClassVar


class CaissonError(Exception):
    """One line for a person: what happened, to what, what to do next. ``exit_code`` is the command's."""

    exit_code: ClassVar[int] = 1
