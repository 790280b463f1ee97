"""Runs one coroutine so that Ctrl-C and SIGTERM cancel it, once, and let every resource close itself."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from caisson_runner.errors import CaissonError

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(CaissonError):
    """A signal ended the command; everything it had made was taken away first."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}; everything that ran was ended and removed")
        self.exit_code = 128 + signum  # type: ignore[misc]  # differs by signal, as shells do


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    The first SIGINT, SIGTERM or SIGHUP cancels it; later ones are ignored while it cleans up. Raises Interrupted
    (exit code 128 + signal number) when it was cancelled that way.
    """
    got: list[int] = []

    async def main() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def stop(signum: int) -> None:
            if not got:
                got.append(signum)
                print("caisson-run: stopping; ending what runs and removing it", file=sys.stderr, flush=True)
                task.cancel()

        for signum in SIGNALS:
            loop.add_signal_handler(signum, stop, signum)
        try:
            return await task
        finally:
            for signum in SIGNALS:
                loop.remove_signal_handler(signum)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if got:
            raise Interrupted(got[0]) from None
        raise
