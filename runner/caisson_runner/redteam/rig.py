"""Runs one route in a fresh box, with its other half where it has one, and judges by the canaries and the records."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from caisson_proto.record import Record

from caisson_runner.boxes.engine import Bind, Box, BoxLimits, Command, Engine, Finished
from caisson_runner.boxes.store import Snapshot
from caisson_runner.compare import matching, sights
from caisson_runner.compare.deeds import Deed, read_deed
from caisson_runner.redteam import blame, gated, world
from caisson_runner.redteam.canaries import Canaries, nonces_in
from caisson_runner.redteam.errors import RedTeamError, RegisterInvalid
from caisson_runner.redteam.outcome import BLOCKED, INAPPLICABLE, NOT_PERFORMED, REACHED, Outcome, complain
from caisson_runner.redteam.register import Route
from caisson_runner.witness import Limits, Witness

if TYPE_CHECKING:
    from caisson_gate.client import GateProcess

    from caisson_runner.boxes.box import LocalBox

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
    gate: GateProcess | None = None
    no_gate: str = ""
    """Why there is none."""

    @property
    def secret(self) -> str:
        return self.canaries.held.secret

    async def perform(self, route: Route, network: str) -> Outcome:
        """One case, start to verdict."""
        if route.documented:
            return self._outcome(route, network, NOT_PERFORMED, reason=route.documented)
        if network == "gate" and self.gate is None:
            return self._outcome(route, network, INAPPLICABLE, reason=self.no_gate)
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
                self.snapshot, box_id=box_id, limits=LIMITS, binds=self.all_binds(route), cgroup=watch.cgroup,
                network="gate" if network == "gate" else "none",
            ) as box:  # fmt: skip
                self.preflight(box)
                async with self._served(route, network, box, folder):
                    self.preflight(box)
                    command = self.command(route, nonce, self._world(pair))
                    process = await box.start(command, admit=watch.admit, wrap=watch.wrap)
                    finished = await process.wait()
                    if route.id == "local-gate-secrets":
                        await box.capture(folder / "upper.tar.zst")
                    await box.kill()
                    await asyncio.sleep(_HEARD_S)
            evidence = await watch.seal()
            records = list(evidence.records())
            (folder / "events.bin").write_bytes(evidence.events_path.read_bytes())
        return read(finished), finished, records

    def _served(self, route: Route, network: str, box: Box, folder: Path) -> Any:
        if network != "gate" or self.gate is None:
            return nullcontext()
        policy = route.script.parents[1] / "egress" / "policies" / f"{route.policy or 'usual'}.toml"
        return gated.served(self.gate, cast("LocalBox", box), policy, folder)

    def _judge(
        self, route: Route, network: str, said: Said, hits: Sequence[str], records: Sequence[Record], folder: Path,
        wall_s: float,
    ) -> Outcome:  # fmt: skip
        reached = list(hits)
        if nonces_in(said.text, (self.secret, self.secret.encode().hex())):
            reached.append("the box shows the secret")
        wrongly = [hit for hit in hits if "127.0.0.1" in hit]
        if self.touch.exists():
            self.touch.unlink()
            wrongly.append("a file was made outside")
        wrongly += [str(one)[:200] for one in said.saw.get("leaks", ())]
        reached += [one for one in wrongly if one not in reached]
        told = gated.read(folder) if network == "gate" else gated.Told(())
        blocked_by = [*told.blockers(), *blame.blockers(deed for deed in said.deeds if deed.errno)]
        blocked_by = list(dict.fromkeys(blocked_by)) or blame.of_saw(route.name, dict(said.saw))
        excused = self.witness.name in route.silent
        place = folder.relative_to(self.out)
        recorded_by, evidence = recorded(self.witness.name, said.deeds, records, told, place, excused)
        verdict = REACHED if reached else BLOCKED
        complaints, note = complain(
            route, self.name, network, self.witness.name, verdict, reached, blocked_by, recorded_by, wrongly
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
    if finished.exit_code in (126, 127) and finished.detail:
        return Said(INAPPLICABLE, f"the image cannot run it: {finished.detail[:200]}", (), {}, b"")
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


def recorded(
    witness: str,
    deeds: Sequence[Deed],
    records: Sequence[Record],
    told: gated.Told,
    folder: Path,
    excused: bool = False,
) -> tuple[list[str], list[str]]:
    """Who recorded every try, and where: (recorders, references). Nobody, when one try is in no record.

    With ``excused`` (the witness cannot see all of this route) what sent nothing need not be: the gate has no record of
    a socket that was only made or bound.
    """
    marks = matching.judge(deeds, sights.of_records(records))
    seen = [mark.word == matching.SEEN for mark in marks]
    by_gate = [_told_of(deed, told) for deed in deeds]
    idle = [excused and bool(told.events) and deed.op not in ("connect", "sendto") for deed in deeds]
    if not deeds or not all(map(any, zip(seen, by_gate, idle, strict=True))):
        return [], []
    recorders = [f"witness ({witness})"] if all(seen) else []
    recorders += told.recorders()
    places = [f"{folder}/events.jsonl#{seq}" for seq in told.places()]
    for deed, here in zip(deeds, seen, strict=True):
        for record in records if here else ():
            if matching.judge([deed], [sights.of_record(record)])[0].word == matching.SEEN:
                places.append(f"{folder}/events.bin#{record.seq}")
                break
    return recorders, list(dict.fromkeys(places))[:8]


def _told_of(deed: Deed, told: gated.Told) -> bool:
    """Whether the gate's journal tells of a try that named an internet address."""
    if deed.addr is None or len(deed.addr) < 8:
        return False
    family, port = struct.unpack_from("<H", deed.addr)[0], struct.unpack_from(">H", deed.addr, 2)[0]
    if family == socket.AF_INET:
        return told.of_address(socket.inet_ntop(family, deed.addr[4:8]), port)
    if family == socket.AF_INET6 and len(deed.addr) >= 24:
        text = socket.inet_ntop(family, deed.addr[8:24])
        return told.of_address(text.removeprefix("::ffff:") if "." in text else text, port)
    return False
