"""A gate for the red team's boxes, and what its journal says of a route."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caisson_runner.boxes import listeners
from caisson_runner.redteam.errors import RedTeamError

if TYPE_CHECKING:
    from caisson_gate.client import GateProcess

    from caisson_runner.boxes.box import LocalBox

RECORDERS: Final[Mapping[str, str]] = {
    "dns": "gate-dns", "connect": "gate-front", "tls": "gate-front", "tcp": "gate-front", "http": "gate-http",
    "http-done": "gate-http", "ws": "gate-http", "ws-done": "gate-http", "udp": "packet", "icmp": "packet",
    "packet": "packet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """A journal, read: each event with where it stands."""

    events: tuple[dict[str, Any], ...]

    def blockers(self) -> list[str]:
        """``gate:<reason>`` of each refusal, and ``no-listener`` for what only the packet recorder saw."""
        found: list[str] = []
        for event in self.events:
            if event.get("verdict") == "deny" or event.get("reason_code"):
                found.append(f"gate:{event.get('reason_code', 'unknown')}")
            elif event.get("error"):  # an allowed request that broke off
                found.append("gate:error")
            if recorder(event) == "packet":
                found.append("no-listener")
        return list(dict.fromkeys(found))

    def recorders(self) -> list[str]:
        return list(dict.fromkeys(name for event in self.events if (name := recorder(event))))

    def places(self, most: int = 6) -> list[int]:
        """Where refusals are, else where anything is."""
        refused = [event["seq"] for event in self.events if event.get("verdict") == "deny"]
        return (refused or [event["seq"] for event in self.events if recorder(event)])[:most]

    def of_address(self, address: str, port: int, kinds: Collection[str] = ()) -> bool:
        """Whether an event is about a connection or datagram to there; port 0 for protocols without any."""
        return any(
            event.get("orig_dst", [None])[0] == address and (not port or event["orig_dst"][-1] == port)
            for event in self.events
            if not kinds or event.get("kind") in kinds
        )


def recorder(event: Mapping[str, Any]) -> str:
    """Which part of the gate wrote an event; empty for events about the gate itself."""
    if event.get("kind") == "tcp" and event.get("blocked_by"):
        return "packet"
    return RECORDERS.get(str(event.get("kind")), "")


def read(folder: Path) -> Told:
    """A box's journal, its chain checked. RedTeamError when it is damaged: then nothing in it counts."""
    from caisson_gate.events import JournalDamaged
    from caisson_gate.events import read as read_journal

    try:
        return Told(tuple(read_journal(folder / "events.jsonl")))
    except (JournalDamaged, OSError) as problem:
        raise RedTeamError(f"{folder / 'events.jsonl'} is no whole journal: {problem}") from None


@asynccontextmanager
async def open_gate(folder: Path, trusted: Path) -> AsyncIterator[GateProcess]:
    """The gate process in the world. ImportError without its packages; GateError when it does not start."""
    from caisson_gate.client import GateProcess

    class WorldGate(GateProcess):
        command = (sys.executable, "-m", "caisson_runner.redteam.gatehouse", str(folder))

    async with WorldGate(folder / "process", run="redteam", upstream_ca=trusted) as gate:
        yield gate


@asynccontextmanager
async def served(gate: GateProcess, box: LocalBox, policy: Path, folder: Path) -> AsyncIterator[None]:
    """The box's way out, for as long as the context lasts; the journal is whole afterwards."""
    from caisson_gate.client import Opening

    text = policy.read_bytes()
    made: Sequence[listeners.Listener] = ()
    try:
        made = await listeners.listen(box, await gate.check(text, policy.name))
        opening = Opening(box.id, "redteam", text, policy.name, folder)
        opened = await gate.open(opening, [(one.about, one.descriptor) for one in made])
    finally:
        listeners.close(made)
    try:
        yield
    finally:
        await opened.close()
