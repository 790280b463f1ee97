"""The witness ``none``: a run that leaves no record, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from caisson_runner.witness.coverage import Coverage
from caisson_runner.witness.scratch import scratch
from caisson_runner.witness.seam import Evidence, Limits, boot_wall_ns


class NoWitness:
    name = "none"

    def __init__(self, reason: str = "none was asked for") -> None:
        self.reason = reason

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits = Limits()) -> AsyncIterator[NoWatch]:  # noqa: B008
        with scratch() as folder:
            yield NoWatch(folder, self.reason)


class NoWatch:
    cgroup: Path | None = None
    wrap: tuple[str, ...] = ()

    def __init__(self, scratch: Path, reason: str) -> None:
        self._scratch = scratch
        self._reason = reason

    def wrap_exec(self) -> tuple[str, ...]:
        return ()

    async def admit(self, pid: int) -> None:
        return

    async def seal(self) -> Evidence:
        events = self._scratch / "events.bin"
        events.touch()
        coverage = Coverage(
            "none", "none", self._reason, boot_wall_ns=boot_wall_ns(), limits=("Nothing was watched in this run.",)
        )
        return Evidence(events, coverage.as_json(), coverage)
