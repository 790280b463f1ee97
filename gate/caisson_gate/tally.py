"""What was seen, told once and counted ever after, so that a box that floods fills neither memory nor disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Tally(Generic[K]):
    """Counts by key. ``seen`` is true for the first of a key, as long as there is room for keys."""

    def __init__(self, keys: int) -> None:
        self._room = keys
        self._counts: dict[K, int] = {}
        self.beyond = 0
        """Seen when there was no room for another key."""

    def seen(self, key: K) -> bool:
        """Count one; whether it is to be told."""
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = known + 1
            return False
        if len(self._counts) >= self._room:
            self.beyond += 1
            return False
        self._counts[key] = 1
        return True

    def repeated(self) -> Iterator[tuple[K, int]]:
        """Every key seen more than once, and how often in all."""
        return ((key, count) for key, count in self._counts.items() if count > 1)

    @property
    def total(self) -> int:
        """Everything that was seen."""
        return sum(self._counts.values()) + self.beyond
