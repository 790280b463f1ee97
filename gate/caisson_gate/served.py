"""One box as the gate serves it: what front, DNS, recorder and proxy share about it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from caisson_gate.events import Journal
    from caisson_gate.policy import Policy
    from caisson_gate.pool import Pool
    from caisson_gate.resolve import Resolver

Phase = Literal["build", "agent", "verify"]


@dataclass(slots=True)
class Served:
    """Made when the box is opened, gone when it is closed. The proxy gets a mapping of box id to this."""

    box: str
    run: str
    policy: Policy
    journal: Journal
    folder: Path
    """``gate/`` of the run's bundle: ``events.jsonl``, ``bodies/``, ``flows.har``, ``flows.mitm``, ``policy.toml``."""
    resolver: Resolver
    """Names to checked addresses, outside."""
    pool: Pool
    """The names DNS gave addresses for, and those addresses."""
    phase: Phase = "agent"
    record: bool = False
    replay: Path | None = None
    """``gate/`` of the bundle whose flows are served instead of the outside."""
    opened: float = field(default_factory=time.monotonic)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of connections."""

    def deadline(self) -> float | None:
        """Monotonic time at which every connection ends; None without one."""
        seconds = self.policy.deadline_s
        return None if seconds is None else self.opened + seconds
