"""The daemon's log: one line for one event, on stderr, bounded and escaped.

Under systemd a line begins with its priority (``<6>``) and the journal adds who speaks; elsewhere it begins with
``tracerd:``. What follows the words are ``key=value`` pairs. A value that is not plain is quoted like a Python string,
so that nothing a caller or a box chose reaches a terminal or makes a second line.
"""

from __future__ import annotations

import os
import re
import sys
import time
from enum import IntEnum
from typing import Final

BURST: Final = 50
"""Lines with the same words that may come at once."""
PER_SECOND: Final = 5.0
_VALUE_CHARACTERS: Final = 200
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@%+,-]+")


class Priority(IntEnum):
    """syslog's numbers."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class Log:
    """Writes lines; lines with the same words are limited, and the next one tells how many were not written."""

    def __init__(self, journal: bool | None = None) -> None:
        self._journal = _is_journal() if journal is None else journal
        self._tokens: dict[str, tuple[float, float]] = {}
        self._held: dict[str, int] = {}

    def say(self, priority: Priority, words: str, **values: object) -> None:
        """``words`` are ours and few; what comes from outside goes into ``values``."""
        if not self._may(words):
            self._held[words] = self._held.get(words, 0) + 1
            return
        held = self._held.pop(words, 0)
        if held:
            values["suppressed"] = held
        line = " ".join([words, *(f"{key}={escaped(value)}" for key, value in values.items())])
        prefix = f"<{int(priority)}>" if self._journal else "tracerd: "
        print(prefix + line, file=sys.stderr, flush=True)

    def _may(self, words: str) -> bool:
        now = time.monotonic()
        tokens, last = self._tokens.get(words, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - last) * PER_SECOND)
        self._tokens[words] = (tokens - 1 if tokens >= 1 else tokens, now)
        return tokens >= 1


def escaped(value: object) -> str:
    """One word of printable ASCII, whatever the value holds."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    cut = text[:_VALUE_CHARACTERS]
    if cut == text and _PLAIN.fullmatch(text):
        return text
    return ascii(cut) + ("" if cut == text else "...")


def _is_journal() -> bool:
    """Whether stderr is what systemd told us it is: a stream to the journal."""
    found = os.fstat(2)
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


LOG: Final = Log()
