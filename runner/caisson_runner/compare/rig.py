"""Runs one route, or one workload, in a fresh box under one eye."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_runner.boxes.engine import Bind, BoxLimits, Command, Finished
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.process import LocalProcess
from caisson_runner.boxes.store import Snapshot
from caisson_runner.compare import matching
from caisson_runner.compare.deeds import MAX_LINE, Log, read_log
from caisson_runner.compare.eyes import Eye
from caisson_runner.compare.matching import Mark
from caisson_runner.compare.outside import Outside
from caisson_runner.compare.routes import Route
from caisson_runner.compare.sights import Sight
from caisson_runner.witness import Limits

LIMITS: Final = BoxLimits(memory_bytes=1 << 30, pids=128, disk_bytes=256 << 20, wall_s=60)
PLACE: Final = "/routes"
PYTHON: Final = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One route under one eye. ``word`` is the result, or ``inapplicable`` or ``not-performed``."""

    route: Route
    eye: str
    kind: str
    word: str
    reason: str
    marks: tuple[Mark, ...]
    wall_s: float
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether it is what the register expects. What this host cannot do is no difference."""
        if self.word == "inapplicable" or self.kind == "none":
            return True
        return self.word in self.route.expected[self.kind].words

    @property
    def wrong(self) -> int:
        return sum(mark.wrong for mark in self.marks)


async def perform(engine: LocalEngine, snapshot: Snapshot, route: Route, eye: Eye) -> Outcome:
    """Run the route and hold what it did against what the eye saw."""
    nonce = secrets.token_hex(8)
    command = Command((PYTHON, "-I", "-S", f"{PLACE}/{route.script.name}", nonce, route.case), stdin_pipe=True)
    box_id = f"compare-{nonce}"
    bind = Bind(route.script.parent, PLACE)
    async with eye.watch(box_id, Limits(LIMITS.memory_bytes, LIMITS.pids)) as view:
        async with engine.fork(snapshot, box_id=box_id, limits=LIMITS, binds=(bind,), cgroup=view.cgroup) as box:
            if not route.late:
                view.begin(box)
            admit = None if route.late else view.admit
            process = await box.start(command, admit=admit, wrap=() if route.late else view.wrap)
            async with Outside(box, view) as outside:
                log = await _follow(process, outside)
                finished = await process.wait()
        seen = await view.seen()
        note = view.note
    if log.end != "performed":
        tail = finished.stderr[-300:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Outcome(route, eye.name, eye.kind, log.end, log.reason + (f" ({tail})" if tail else ""), (), 0.0, note)
    marks = tuple(matching.judge(log.deeds, seen)) if eye.kind != "none" else ()
    word = matching.word_of(marks) if eye.kind != "none" else "performed"
    return Outcome(route, eye.name, eye.kind, word, "", marks, finished.wall_s, note)


async def _follow(process: LocalProcess, outside: Outside) -> Log:
    """Read the route's log as it is written, and do what it asks of the outside."""
    assert process.stdout is not None and process.stdin is not None
    lines: list[bytes] = []
    rest = b""
    try:
        async with asyncio.timeout(LIMITS.wall_s):
            while chunk := await process.stdout.read(1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE:
                    break
                for line in whole:
                    lines.append(line)
                    if line.startswith(b'{"ask"'):
                        answer = await outside.serve(str(json.loads(line)["ask"]), process.pid)
                        process.stdin.write(answer.encode() + b"\n")
                        await process.stdin.drain()
                    if line.startswith(b'{"end"'):
                        return read_log(lines)
    except TimeoutError:
        return Log((), "not-performed", f"not finished after {LIMITS.wall_s:g} s")
    return read_log([*lines, rest])


@dataclass(frozen=True, slots=True)
class Work:
    """A command that was run under an eye. ``written`` are the files it left, with their absolute paths."""

    finished: Finished
    written: tuple[bytes, ...]
    sights: Sequence[Sight]
    note: str


async def work(engine: LocalEngine, snapshot: Snapshot, command: Command, eye: Eye, binds: Sequence[Bind] = ()) -> Work:
    """Run a command in a fresh box under the eye."""
    box_id = f"compare-{secrets.token_hex(8)}"
    async with eye.watch(box_id, Limits(LIMITS.memory_bytes, LIMITS.pids)) as view:
        async with engine.fork(snapshot, box_id=box_id, limits=LIMITS, binds=tuple(binds), cgroup=view.cgroup) as box:
            view.begin(box)
            process = await box.start(command, admit=view.admit, wrap=view.wrap)
            finished = await process.wait()
            changes = await box.diff()
            await box.kill()
        seen = await view.seen()
    written = tuple(b"/" + one.path for one in changes if one.kind == "file" and one.how != "removed")
    return Work(finished, written, seen, view.note)


def routes_folder() -> Path:
    """Where the routes that come with Caisson lie."""
    from caisson_runner.tasks.search import scenarios_root

    return scenarios_root() / "routes" / "witness"
