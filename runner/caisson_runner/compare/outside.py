"""What a route may ask of the outside: to be moved between cgroups the run made, to be admitted late, to be waited for.

Only cgroups below the box's own, or beside it with a name made from it, are used, and they are removed when the box's
processes are gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

from caisson_runner.boxes.box import LocalBox
from caisson_runner.compare.eyes import View

PAUSE_S = 1.0


class Outside:
    """The helper of one box. Leaving the context kills the box's processes and removes what was made for them."""

    def __init__(self, box: LocalBox, view: View) -> None:
        self._box = box
        self._view = view
        self._made: list[Path] = []

    async def __aenter__(self) -> Outside:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._box.kill()
        for path in self._made:
            for _ in range(100):
                try:
                    path.rmdir()
                    break
                except OSError:
                    await asyncio.sleep(0.02)

    async def serve(self, ask: str, pid: int) -> str:
        """Do what is asked; the answer is ``done`` or ``refused: <why>``."""
        try:
            if ask == "pause":
                await asyncio.sleep(PAUSE_S)
                return "done"
            if ask == "attach":
                if self._view.wrap:
                    return "refused: this witness does not begin in the middle"
                self._view.begin(self._box)
                if self._view.admit is not None:
                    await self._view.admit(pid)
                return "done"
            if ask in ("cgroup-child", "cgroup-out"):
                return self._move(pid, ask == "cgroup-child")
        except OSError as problem:
            return f"refused: {ask}: {problem.strerror}"
        return f"refused: nobody here knows {ask!r}"

    def _move(self, pid: int, below: bool) -> str:
        if self._box.cgroup is None:
            return "refused: this box has no cgroup"
        own = self._box.cgroup.path
        target = own / "inner" if below else own.with_name(f"{own.name[-40:]}-beside")
        target.mkdir()
        self._made.append(target)
        (target / "cgroup.procs").write_text(str(pid))
        return "done"
