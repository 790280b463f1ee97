"""The root of every error this command reports.

Exit codes: 2 a user's mistake, 3 our side or the host is at fault, 130 and 143 interrupted.
"""

from __future__ import annotations

from typing import ClassVar


class CaissonError(Exception):
    """A failure with one clear line: what happened, to what, and what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split("\n")))
