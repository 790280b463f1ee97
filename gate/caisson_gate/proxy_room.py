"""What the proxy holds for one box: its journal, its bodies, its credentials, and what is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from caisson_gate.answers import CutOff
from caisson_gate.bodies import BodyStore
from caisson_gate.credentials import Credentials
from caisson_gate.decide import Decision, Request, decide
from caisson_gate.share import Share

if TYPE_CHECKING:
    from caisson_gate.events import Kind
    from caisson_gate.exchange import Exchange
    from caisson_gate.replay import Recorded
    from caisson_gate.resolve import Target
    from caisson_gate.served import Served


DIALS: Final = 1024
"""Connections to upstreams of one box at once. A descriptor each, of which the gate has so many for all boxes."""

AT_ONCE: Final = 512
"""Requests of one box at once: each may hold some megabytes of its body in memory."""


class Room:
    """One box's part of the proxy."""

    def __init__(self, served: Served, credentials: Credentials) -> None:
        self.served = served
        self.credentials = credentials
        self.redactor = credentials.redactor
        self.bodies = BodyStore(served.folder / "bodies", self.redactor, keep=served.record)
        self.cutoff = CutOff.of(served.policy)
        self.recorded: Recorded | None = None
        if served.replay is not None:
            from caisson_gate.replay import Recorded

            same_policy = served.policy.sha256 if self.cutoff is not None else None
            self.recorded = Recorded.open(served.replay, same_policy)
        self.tasks: set[asyncio.Task[None]] = set()
        self.dials = asyncio.Semaphore(DIALS)
        self.share = Share()
        self.open: set[Exchange] = set()
        """Under way, of all connections."""
        self.requests = 0
        self.denied = 0

    def decide(self, request: Request) -> Decision:
        """What the box's policy says."""
        return decide(self.served.policy, request)

    def tell(self, kind: Kind, **fields: Any) -> int:
        """Write one event."""
        return self.served.journal.append(kind, **fields)

    async def target(self, host: str, port: int) -> Target:
        """The checked address to dial. AddressDenied, OSError."""
        return await self.served.target(host, port)
