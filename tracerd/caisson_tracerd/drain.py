"""When to drain: one wake-up for many records.

The kernel signals a ring with the first record after its reader caught up. The drainer then waits a little, so that a
busy box costs some twenty wake-ups a second and not one for each record. A ring past its half signals with every
record; a second signal therefore means: now. A slow sweep over all rings covers a signal that was lost. A drain
takes one slice and then waits its turn, so that a flood does not keep the daemon from its other boxes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.05
SWEEP_S: Final = 1.0


class Drainer:
    """Calls ``drain(descriptor)`` for rings with records, again while it says there is more; has one event loop."""

    def __init__(self, drain: Callable[[int], bool]) -> None:
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self._rings: set[int] = set()
        self.swept: Callable[[], None] = lambda: None
        """Called after each slow sweep that went through; a drain that hangs or breaks keeps it away."""
        self._loop.add_reader(self._epoll.fileno(), self._signalled)
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_all)

    def add(self, descriptor: int) -> None:
        """Watch a ring."""
        self._rings.add(descriptor)
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def remove(self, descriptor: int) -> None:
        """Forget a ring, before its descriptor is closed."""
        if descriptor in self._rings:
            self._rings.discard(descriptor)
            self._epoll.unregister(descriptor)
        timer = self._waiting.pop(descriptor, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        self._sweep.cancel()
        for descriptor in list(self._rings):
            self.remove(descriptor)
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _signalled(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            timer = self._waiting.get(descriptor)
            if timer is None:
                self._waiting[descriptor] = self._loop.call_later(PAUSE_S, self._due, descriptor)
            else:
                timer.cancel()
                self._due(descriptor)

    def at_once(self, descriptor: int) -> None:
        """Do not wait for more."""
        timer = self._waiting.pop(descriptor, None)
        if timer is not None:
            timer.cancel()
        self._due(descriptor)

    def _due(self, descriptor: int) -> None:
        self._waiting.pop(descriptor, None)
        if descriptor in self._rings and self._drain(descriptor) and descriptor not in self._waiting:
            self._waiting[descriptor] = self._loop.call_later(0, self._due, descriptor)

    def _sweep_all(self) -> None:
        for descriptor in self._rings - set(self._waiting):
            self._due(descriptor)
        self.swept()
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_all)
