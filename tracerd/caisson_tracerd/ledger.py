"""What the daemon did, counted and told: one line in the log for each step of a box's life, and sums for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from caisson_tracerd.box import Box, ClassCount
from caisson_tracerd.errors import TracerdError
from caisson_tracerd.log import LOG, Priority

DRAIN_BUCKETS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OUTCOMES: Final = ("delivered", "dropped_ring", "dropped_map", "unreadable", "partial")


class Observer(Protocol):
    """Who is told about every step of a box's life. Called in the daemon's loop, at once and briefly."""

    def created(self, box: Box) -> None: ...

    def sealed(self, box: Box) -> None: ...

    def dropped(self, box: Box) -> None:
        """The cgroup is gone, counters and journal are still there."""

    def drained(self, box: Box, count: int, seconds: float) -> None: ...

    def journal_failed(self, box: Box, problem: OSError) -> None: ...


class Silent:
    """Tells nobody; during the self-test."""

    def created(self, box: Box) -> None: ...

    def sealed(self, box: Box) -> None: ...

    def dropped(self, box: Box) -> None: ...

    def drained(self, box: Box, count: int, seconds: float) -> None: ...

    def journal_failed(self, box: Box, problem: OSError) -> None:
        LOG.say(Priority.ERROR, "journal cannot be written", uid=box.note.uid, box=box.note.id, reason=problem.strerror)


class Ledger:
    """Sums over boxes that are gone, in bounded memory: by caller, event kind and outcome, never by box."""

    def __init__(self) -> None:
        self.past_events: Counter[tuple[int, str, str]] = Counter()
        self.past_journal_bytes: Counter[int] = Counter()
        self.steps: Counter[tuple[int, str]] = Counter()
        self.adopted = 0
        self.write_failures = 0
        self.drains: Counter[float] = Counter()
        """Drains by the upper bound of their bucket; ``inf`` for the slowest."""
        self.drain_seconds = 0.0
        self.peaks: dict[int, float] = {}
        """The most that one drain found in a ring, as a part of its size, by caller."""

    def took_over(self, boxes: list[Box]) -> None:
        """Boxes an earlier daemon left."""
        self.adopted = len(boxes)
        for box in boxes:
            self._tell("box adopted", box, journal_bytes=box.journal.size)

    def created(self, box: Box) -> None:
        self.steps[box.note.uid, "created"] += 1
        self._tell("box created", box, ring_bytes=box.note.ring_bytes)

    def sealed(self, box: Box) -> None:
        self.steps[box.note.uid, "sealed"] += 1
        lost = sum(count.dropped_ring + count.dropped_map for count in box.note.counts)
        delivered = sum(count.delivered for count in box.note.counts)
        self._tell("box sealed", box, delivered=delivered, dropped=lost, journal_bytes=box.journal.size)
        if lost:
            LOG.say(Priority.WARNING, "records were dropped", uid=box.note.uid, box=box.note.id, dropped=lost)

    def dropped(self, box: Box) -> None:
        self.steps[box.note.uid, "dropped"] += 1
        for count in counts_of(box):
            for outcome in OUTCOMES:
                self.past_events[box.note.uid, count.kind, outcome] += getattr(count, outcome)
        self.past_journal_bytes[box.note.uid] += box.journal.size
        self._tell("box dropped", box)

    def drained(self, box: Box, count: int, seconds: float) -> None:
        if not count:
            return
        self.drains[next((bound for bound in DRAIN_BUCKETS_S if seconds <= bound), float("inf"))] += 1
        self.drain_seconds += seconds
        share = min(1.0, count / box.note.ring_bytes)
        self.peaks[box.note.uid] = max(share, self.peaks.get(box.note.uid, 0.0))

    def journal_failed(self, box: Box, problem: OSError) -> None:
        self.write_failures += 1
        Silent().journal_failed(box, problem)

    def _tell(self, words: str, box: Box, **values: object) -> None:
        LOG.say(Priority.INFO, words, uid=box.note.uid, box=box.note.id, **values)


def counts_of(box: Box) -> list[ClassCount]:
    """The box's counters; none when the kernel has them no more."""
    try:
        return box.counts()
    except TracerdError:
        return []
