"""What a witness saw and what it may have missed: the ``coverage.json`` of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """The law of conservation for one class of events: seen = delivered + dropped_ring + dropped_map + unreadable."""

    seen: int = 0
    delivered: int = 0
    dropped_ring: int = 0
    dropped_map: int = 0
    unreadable: int = 0
    partial: int = 0
    """Of the delivered ones, those with a field that could not be read (the box passed a bad pointer)."""

    @property
    def dropped(self) -> int:
        return self.dropped_ring + self.dropped_map

    @property
    def balanced(self) -> bool:
        return self.seen == self.delivered + self.dropped + self.unreadable


@dataclass(frozen=True, slots=True)
class Freezes:
    """How often and how long a lossless box stood still while its ring was drained; all times CLOCK_BOOTTIME ns.

    ``peak_bytes`` of ``ring_bytes`` is how near it came to dropping; ``gaps`` are the first thousand (begin, end).
    """

    count: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    peak_bytes: int = 0
    ring_bytes: int = 0
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """``chosen`` says why this witness.

    ``limits`` are sentences on what this tier cannot see by its nature; they do not make a record incomplete. ``gaps``
    are sentences on what was missed in this run, beyond the counts; any of them does.
    """

    witness: str
    tier: str
    chosen: str
    counts: Mapping[str, Counts] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    boot_wall_ns: int = 0
    manifest: Mapping[str, Any] | None = None
    freezes: Freezes | None = None
    """Of a lossless run; standing still is no gap in the record."""

    @property
    def dropped(self) -> int:
        return sum(one.dropped for one in self.counts.values())

    @property
    def unreadable(self) -> int:
        return sum(one.unreadable for one in self.counts.values())

    @property
    def complete(self) -> bool:
        """Nothing this tier is able to see was lost. Never true without a witness."""
        whole = all(one.balanced for one in self.counts.values())
        return self.tier != "none" and whole and not (self.dropped or self.unreadable or self.gaps)

    @property
    def reason(self) -> str:
        """Why the record is not complete, in one sentence; empty when it is."""
        if self.tier == "none":
            return "nothing was watched"
        said = [
            f"{count} events were {how}"
            for how, count in (("dropped", self.dropped), ("unreadable", self.unreadable))
            if count
        ]
        if not all(one.balanced for one in self.counts.values()):
            said.append("the counters do not add up")
        return "; ".join([*said, *(gap.rstrip(".") for gap in self.gaps)])

    def as_json(self) -> dict[str, Any]:
        return {
            "witness": self.witness,
            "tier": self.tier,
            "chosen": self.chosen,
            "complete": self.complete,
            "reason": self.reason,
            "dropped": self.dropped,
            "unreadable": self.unreadable,
            "counts": {
                kind: {
                    "seen": one.seen,
                    "delivered": one.delivered,
                    "dropped_ring": one.dropped_ring,
                    "dropped_map": one.dropped_map,
                    "unreadable": one.unreadable,
                    "partial": one.partial,
                }
                for kind, one in sorted(self.counts.items())
            },
            "hooks": list(self.hooks),
            "limits": list(self.limits),
            "gaps": list(self.gaps),
            "boot_wall_ns": self.boot_wall_ns,
            "manifest": self.manifest,
            "freezes": asdict(self.freezes) if self.freezes is not None else None,
        }
