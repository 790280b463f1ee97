"""What an exporter needs beside the records: run, verdict, the witness's word, and who is who at each moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.reader import Bundle, numbers, tables
from caisson_runner.bundle.writer import COVERAGE, RUN, VERDICT
from caisson_runner.export.text import shown

MAX_ACTORS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Scene:
    """One run. ``anchor_ns`` is wall-clock time minus CLOCK_BOOTTIME; 0 when nothing was watched."""

    name: str
    run: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    anchor_ns: int = 0

    @classmethod
    def of(cls, bundle: Bundle) -> Scene:
        run, verdict, coverage = (_table(bundle, name) for name in (RUN, VERDICT, COVERAGE))
        anchor = coverage.get("boot_wall_ns")
        name = str(run.get("id") or bundle.root.name)
        return cls(_plain(name), run, verdict, coverage, anchor if isinstance(anchor, int) else 0)

    def wall_ns(self, time_ns: int) -> int:
        """Wall-clock time of a moment of the record."""
        return self.anchor_ns + time_ns

    @property
    def task(self) -> str:
        """The task's id."""
        return _plain(str(_of(self.run, "task").get("id") or ""))

    @property
    def agent(self) -> str:
        """The agent's name."""
        return _plain(str(_of(self.run, "agent").get("name") or ""))

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        return list[Mapping[str, Any]](tables(self.verdict.get("findings")))

    @property
    def box(self) -> str:
        """A stable name for the box this ran in."""
        return f"caisson:{self.name}"

    def harness(self) -> frozenset[int]:
        """Pids of what the naive harness started in the agent's box."""
        return frozenset(numbers(self.run.get("harness_pids")))


def _plain(text: str) -> str:
    """A name from a bundle's JSON, which a stranger may have written: printable, and short."""
    return shown(text.encode("utf-8", "surrogatepass"), 200)


def _table(bundle: Bundle, name: str) -> Mapping[str, Any]:
    value = bundle.json(name) if bundle.has(name) else {}
    return value if isinstance(value, dict) else {}


def _of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class Actor:
    """A process, as it is at the moment of the record that is being looked at."""

    pid: int
    start_ns: int
    comm: bytes = b""
    uid: int = 0
    gid: int = 0
    program: bytes | None = None
    argv: tuple[bytes, ...] = ()
    cwd: bytes | None = None
    parent: Actor | None = None
    ppid: int = 0
    parent_start_ns: int = 0
    began_ns: int = 0
    """When it became this program."""
    harness: bool = False
    """Started by the naive harness in the agent's box, not by the agent."""

    @property
    def name(self) -> str:
        return shown(self.comm, 64)


class Actors:
    """Follows the records and knows who is who. Holds the processes that live, `MAX_ACTORS` at most."""

    def __init__(self, harness: Collection[int] = ()) -> None:
        self._alive: dict[tuple[int, int], Actor] = {}
        self._harness = harness

    def before(self, record: Record) -> Actor:
        """The process of a record as it was when this began: an exec's is still the old program."""
        actor = self._alive.get(record.identity)
        if actor is None:
            actor = Actor(record.pid, record.start_ns, ppid=record.ppid, parent_start_ns=record.parent_start_ns)
            actor.parent = self._alive.get((record.ppid, record.parent_start_ns))
            actor.harness = record.pid in self._harness or (actor.parent is not None and actor.parent.harness)
            if len(self._alive) < MAX_ACTORS:
                self._alive[record.identity] = actor
        if not (record.kind is Kind.EXEC and not record.error):
            actor.comm = record.comm
        actor.uid, actor.gid = record.uid, record.gid
        return actor

    def after(self, record: Record) -> Actor | None:
        """Takes note of what a record changed. Gives the process that a fork made or an exec became, else None."""
        actor = self._alive.get(record.identity)
        if actor is None:
            return None
        if record.kind is Kind.FORK and not record.flags & Flag.THREAD:
            child = Actor(
                record.args[0], record.args[2], record.comm, record.uid, record.gid, actor.program, actor.argv,
                actor.cwd, actor, record.pid, record.start_ns, record.time_ns, actor.harness,
            )  # fmt: skip
            if len(self._alive) < MAX_ACTORS:
                self._alive.setdefault(record.child, child)
            return child
        if record.kind is Kind.EXEC and not record.error:
            actor.program = record.resolved or record.asked
            actor.argv, actor.cwd, actor.comm = record.argv or (), record.cwd, record.comm
            actor.began_ns = record.time_ns
            return actor
        if record.kind is Kind.EXIT and not record.flags & Flag.THREAD:
            del self._alive[record.identity]
        return None

    def alive(self) -> list[Actor]:
        """Those whose end is not in the record so far."""
        return list(self._alive.values())
