"""One box as the gate serves it: what front, DNS, recorder and proxy share about it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caisson_gate.events import Journal
    from caisson_gate.policy import Policy
    from caisson_gate.pool import Pool
    from caisson_gate.resolve import Resolver, Target
    from caisson_gate.rules import Phase


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

    def judge(self, address: str) -> str | None:
        """Why the policy refuses an address that a name leads to; None when it may be dialled."""
        refused = self.policy.refuses(address, self.phase)
        return None if refused is None else refused[1]

    async def target(self, name: str, port: int) -> Target:
        """What to dial for a canonical name or address. AddressDenied, or OSError when there is nowhere to go."""
        return await self.resolver.resolve(name, port, self.judge)

    @property
    def age(self) -> float:
        """Seconds since the box was opened, as the policy counts."""
        return time.monotonic() - self.opened

    def deadline(self) -> float | None:
        """Monotonic time at which every connection ends; None without one."""
        seconds = self.policy.deadline_s
        return None if seconds is None else self.opened + seconds
