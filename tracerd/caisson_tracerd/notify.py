"""What systemd is told: ready, alive, a status line, stopping."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from caisson_tracerd.log import LOG, Priority


def notify(*lines: str) -> None:
    """One message, when systemd asked for any."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, contextlib.suppress(OSError):
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall("\n".join(lines).encode())


class Pulse:
    """Tells systemd's watchdog that the daemon lives, from the drain loop and only while it is well.

    `beat` is called after every whole sweep over the rings: a drain that hangs or breaks stops it. ``illness`` says
    what else is wrong, or nothing.
    """

    def __init__(self, illness: Callable[[], str | None], status: Callable[[], str]) -> None:
        self._illness = illness
        self._status = status
        self._said = ""
        wanted = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
        self._watched = wanted and bool(os.environ.get("WATCHDOG_USEC"))

    def beat(self) -> None:
        """Once for each sweep."""
        illness = self._illness()
        status = illness or self._status()
        lines = [] if status == self._said else [f"STATUS={status}"]
        if illness is None:
            lines += ["WATCHDOG=1"] if self._watched else []
        elif status != self._said:
            LOG.say(Priority.ERROR, "not well", reason=illness)
        self._said = status
        if lines:
            notify(*lines)
