"""Who a box belongs to: a process. When it has ended, however it ended, nobody wants the box any more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from caisson_tracerd import process
from caisson_tracerd.errors import NotYours, UsageError

Key = tuple[int, str]


def checked(uid: int, pid: int, ticks: int, namespace: int) -> tuple[int, int] | None:
    """The owner as (pid, start), or None when it lives where we cannot see it. UsageError when it is not so."""
    if namespace and namespace != Path("/proc/self/ns/pid").stat().st_ino:
        return None
    with process.held(pid) as found:
        if uid and found.uids != {uid}:
            raise NotYours(f"process {pid} is not yours (uid {uid}); own your boxes yourself")
        if found.start_ticks != ticks:
            raise UsageError(f"process {pid} did not start at tick {ticks}; its number belongs to another now")
    return pid, ticks


class Leases:
    """Calls ``ended(key)`` once when a box's owner has ended; lives in one event loop."""

    def __init__(self, ended: Callable[[Key], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[Key, int] = {}

    def watch(self, key: Key, owner: tuple[int, int]) -> None:
        """From now on, or at once when the owner has ended already."""
        pid, ticks = owner
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._loop.call_soon(self._ended, key)
            return
        try:
            same = process.look(pid).start_ticks == ticks
        except OSError:
            same = False
        if not same:
            os.close(descriptor)
            self._loop.call_soon(self._ended, key)
            return
        self._descriptors[key] = descriptor
        self._loop.add_reader(descriptor, self._over, key)

    def forget(self, key: Key) -> None:
        descriptor = self._descriptors.pop(key, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            with suppress(OSError):
                os.close(descriptor)

    def close(self) -> None:
        for key in list(self._descriptors):
            self.forget(key)

    def _over(self, key: Key) -> None:
        self.forget(key)
        self._ended(key)
