"""Runs one route in a fresh box, with its other half where it has one, and judges by the canaries and the records."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import Record

from caisson_runner.boxes.engine import Bind, Box, BoxLimits, Command, Engine, Finished
from caisson_runner.boxes.store import Snapshot
from caisson_runner.compare import matching, sights
from caisson_runner.compare.deeds import Deed, read_deed
from caisson_runner.redteam import blame, world
from caisson_runner.redteam.canaries import Canaries, nonces_in
from caisson_runner.redteam.errors import RedTeamError, RegisterInvalid
from caisson_runner.redteam.outcome import BLOCKED, INAPPLICABLE, NOT_PERFORMED, REACHED, Outcome, complain
from caisson_runner.redteam.register import Route
from caisson_runner.witness import Limits, Witness

LIMITS: Final = BoxLimits(memory_bytes=1 << 30, pids=128, disk_bytes=64 << 20, wall_s=60)
PLACE: Final = "/routes"
SHARED: Final = "/shared"
PYTHON: Final = "/usr/bin/python3"
_HEARD_S: Final = 0.15
"""How long canaries are listened to after the box's last process: what was sent on loopback is there by then."""


@dataclass(frozen=True, slots=True)
class Said:
    """The one line of a script."""

    end: str
    reason: str
    deeds: tuple[Deed, ...]
    saw: Mapping[str, Any]
    text: bytes


@dataclass(slots=True)
class Rig:
    """What all routes of one engine share."""

    engine: Engine
    name: str
    snapshot: Snapshot
    witness: Witness
    canaries: Canaries
    facts: dict[str, Any]
    """What a route may know of the world: names, ports, paths. Never the secret."""
    shared: Path
    out: Path
    """Where records are kept, by engine, network and route."""
    touch: Path
    """A file that only what runs outside could make."""
    binds: tuple[Bind, ...] = ()
    workdir: str = "/app"
    networks: tuple[int, ...] = field(default_factory=tuple)
    """Network namespaces no box may be in: the world's and the host's."""

    @property
    def secret(self) -> str:
        return self.canaries.held.secret

    async def perform(self, route: Route, network: str) -> Outcome:
        """One case, start to verdict."""
        if route.documented:
            return self._outcome(route, network, NOT_PERFORMED, reason=route.documented)
        nonce, pair = secrets.token_hex(12), secrets.token_hex(8)
        self.canaries.held.expect(nonce)
        folder = self.out / self.name / network / route.name.replace("/", "~")
        folder.mkdir(parents=True)
        try:
            async with AsyncExitStack() as stack:
                if route.sibling:
                    await stack.enter_async_context(self._sibling(route, network, nonce, pair))
                said, finished, records = await self._run(route, network, nonce, pair, folder)
            await asyncio.sleep(_HEARD_S)
            self.canaries.settle()
            hits = self.canaries.held.hits(nonce)
        finally:
            self.canaries.held.forget(nonce)
        (folder / "said.json").write_bytes(said.text or finished.stderr[-2000:])
        if said.end != "performed":
            return self._outcome(route, network, said.end, reason=said.reason, wall_s=finished.wall_s)
        return self._judge(route, network, said, hits, records, folder, finished.wall_s)

    def _sibling(self, route: Route, network: str, nonce: str, pair: str) -> _Sibling:
        return _Sibling(self, route, self._world(pair, role="sibling", secret=self.secret), nonce, network)

    def _world(self, pair: str, **more: str) -> str:
        return json.dumps({**self.facts, "pair": pair, **more}, separators=(",", ":"))

    def command(self, route: Route, nonce: str, facts: str, pipe: bool = False) -> Command:
        """The script as the box runs it."""
        place = f"{PLACE}/{route.script.parent.name}/{route.script.name}"
        return Command((PYTHON, "-I", "-S", "-B", place, nonce, route.case, facts), cwd=self.workdir, stdin_pipe=pipe)

    def all_binds(self, route: Route) -> tuple[Bind, ...]:
        folder = route.script.parent
        return (*self.binds, Bind(folder, f"{PLACE}/{folder.name}"), Bind(self.shared, SHARED))

    def preflight(self, box: Box) -> None:
        """No route runs in a box that holds a link, or shares a network with the outside."""
        pid = getattr(box, "init_pid", 0)
        if strangers := world.links(pid) - {"lo"}:
            raise RedTeamError(f"box {box.id} holds a link {min(strangers)}: no route is run in it")

    async def _run(
        self, route: Route, network: str, nonce: str, pair: str, folder: Path
    ) -> tuple[Said, Finished, list[Record]]:
        box_id = f"redteam-{nonce[:16]}"
        async with self.witness.watch(box_id, Limits(LIMITS.memory_bytes, LIMITS.pids)) as watch:
            async with self.engine.fork(
                self.snapshot, box_id=box_id, limits=LIMITS, binds=self.all_binds(route), cgroup=watch.cgroup
            ) as box:
                self.preflight(box)
                command = self.command(route, nonce, self._world(pair))
                process = await box.start(command, admit=watch.admit, wrap=watch.wrap)
                finished = await process.wait()
                if route.id == "local-gate-secrets":
                    await box.capture(folder / "upper.tar.zst")
                await box.kill()
            evidence = await watch.seal()
            records = list(evidence.records())
            (folder / "events.bin").write_bytes(evidence.events_path.read_bytes())
        return read(finished), finished, records

    def _judge(
        self, route: Route, network: str, said: Said, hits: Sequence[str], records: Sequence[Record], folder: Path,
        wall_s: float,
    ) -> Outcome:  # fmt: skip
        reached = list(hits)
        if nonces_in(said.text, (self.secret, self.secret.encode().hex())):
            reached.append("the box shows the secret")
        if self.touch.exists():
            self.touch.unlink()
            reached.append("a file was made outside")
        reached += [str(one)[:200] for one in said.saw.get("leaks", ())]
        failed = [deed for deed in said.deeds if deed.errno]
        blocked_by = blame.blockers(failed) or blame.of_saw(route.name, dict(said.saw))
        recorded_by, evidence = seen_by_witness(self.witness.name, said.deeds, records, folder / "events.bin", self.out)
        verdict = REACHED if reached else BLOCKED
        complaints, note = complain(
            route, self.name, network, self.witness.name, verdict, reached, blocked_by, recorded_by
        )
        return self._outcome(
            route, network, verdict, reached=tuple(reached), blocked_by=tuple(blocked_by), wall_s=wall_s, note=note,
            recorded_by=tuple(recorded_by), evidence=tuple(evidence), complaints=tuple(complaints),
        )  # fmt: skip

    def _outcome(self, route: Route, network: str, verdict: str, **facts: Any) -> Outcome:
        if verdict in (INAPPLICABLE, NOT_PERFORMED):
            complaints, note = complain(route, self.name, network, self.witness.name, verdict, (), (), ())
            facts = {"complaints": tuple(complaints), "note": note, **facts}
        return Outcome(route.name, route.id, route.group, self.name, network, self.witness.name, verdict, **facts)


class _Sibling:
    """The other half of a route, in a box of its own, for as long as the context lasts."""

    def __init__(self, rig: Rig, route: Route, facts: str, nonce: str, network: str) -> None:
        self._rig, self._route, self._facts, self._nonce = rig, route, facts, nonce
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> None:
        rig = self._rig
        async with AsyncExitStack() as stack:
            box = await stack.enter_async_context(
                rig.engine.fork(rig.snapshot, limits=LIMITS, binds=rig.all_binds(self._route))
            )
            rig.preflight(box)
            process = await box.start(rig.command(self._route, self._nonce, self._facts, pipe=True))
            assert process.stdout is not None
            async with asyncio.timeout(LIMITS.wall_s):
                line = await process.stdout.readline()
            if b'"performed"' not in line:
                raise RedTeamError(f"{self._route.name}: its other half did not begin: {line[:200]!r}")
            self._stack = stack.pop_all()

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


def read(finished: Finished) -> Said:
    """The script's line. A script that wrote none did not perform."""
    text = finished.stdout.strip().rpartition(b"\n")[2]
    if not text:
        last = finished.stderr[-300:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Said(NOT_PERFORMED, f"no word from it ({finished.outcome.value}: {last})", (), {}, b"")
    try:
        said = json.loads(text)
        deeds = tuple(read_deed(one) for one in said["tries"])
        end = str(said["end"])
        if end not in ("performed", INAPPLICABLE, NOT_PERFORMED):
            raise ValueError(end)
        return Said(end, str(said["reason"])[:300], deeds, dict(said["saw"]), text)
    except (ValueError, TypeError, KeyError) as problem:
        raise RegisterInvalid(f"a route wrote what is no line of ours: {text[:200]!r} ({problem})") from None


def seen_by_witness(
    name: str, deeds: Sequence[Deed], records: Sequence[Record], file: Path, top: Path
) -> tuple[list[str], list[str]]:
    """Whether the witness's record holds every try, and where each is: (recorders, references)."""
    shown = sights.of_records(records)
    marks = matching.judge(deeds, shown)
    if not marks or matching.word_of(marks) != matching.SEEN:
        return [], []
    places: list[str] = []
    for deed in deeds:
        for record in records:
            if matching.judge([deed], [sights.of_record(record)])[0].word == matching.SEEN:
                places.append(f"{file.relative_to(top)}#{record.seq}")
                break
    return [f"witness ({name})"], list(dict.fromkeys(places))[:8]
