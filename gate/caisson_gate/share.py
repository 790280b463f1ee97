"""The gate's time, divided: one process serves every box, and what one of them sends must not keep the others waiting.

Work for a box is done in small pieces. Once a round of the loop has given a box its slice, the rest of its connections
wait for the next round, in which everybody else's come first.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_S: Final = 0.002
"""A box's time in one round of the loop. Its last piece may go beyond it."""


class Share:
    """One box's."""

    def __init__(self) -> None:
        self._used = 0.0
        self._waiting: list[asyncio.Future[None]] = []
        self._armed = False

    async def turn(self) -> None:
        """Wait while the box has had its time in this round."""
        while self._used >= SLICE_S:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def charge(self, since: float) -> None:
        """Work was done for the box, from ``since`` (monotonic) until now."""
        self._used += time.monotonic() - since
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._armed, self._used = False, 0.0
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
