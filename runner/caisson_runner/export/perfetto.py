"""A Chrome trace (the JSON that Perfetto opens): a track for every process, a slice for every program, a mark for the
rest.

Source: the Trace Event Format, and Perfetto's page on external formats: an object with ``traceEvents``; ``ts`` and
``dur`` in microseconds; phases ``M`` (names), ``X`` (complete slice), ``i`` (instant).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.canonical import dump_line
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.scene import Actor, Actors, Scene
from caisson_runner.export.text import Address, command_line, errno_name, maybe, shown, signal_name


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """The document, an event a line, so that it is written as it comes and can be looked at with line tools too."""
    yield b'{"displayTimeUnit":"ms","otherData":' + dump_line(_about(scene)).rstrip() + b',"traceEvents":[\n'
    first = True
    for value in events(scene, records):
        yield (b"" if first else b",\n") + dump_line(value).rstrip()
        first = False
    yield b"\n]}\n"


def _about(scene: Scene) -> dict[str, Any]:
    return {
        "run": scene.name,
        "task": scene.task,
        "agent": scene.agent,
        "verdict": str(scene.verdict.get("word") or ""),
        "complete": str(scene.coverage.get("complete") is True).lower(),
        "anchor_ns": str(scene.anchor_ns),
    }


def events(scene: Scene, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Trace events. Times count from the first record on."""
    actors = Actors(scene.harness())
    begin: int | None = None
    last = 0
    for record in records:
        begin = record.time_ns if begin is None else begin
        last = max(last, record.time_ns)
        actor = actors.before(record)
        exits = record.kind is Kind.EXIT and not record.flags & Flag.THREAD
        if exits or (record.kind is Kind.EXEC and not record.error):
            yield from _slice(actor, begin, record.time_ns, record)
        elif record.kind not in (Kind.FORK, Kind.EXIT):
            yield _mark(record, begin)
        made = actors.after(record)
        if made is not None:
            yield _name("process_name", made, {"name": f"{made.name} {command_line(made.argv, 60)}".strip()})
            if record.kind is Kind.FORK:
                yield _name("process_sort_index", made, {"sort_index": record.seq})
    for actor in actors.alive():
        yield from _slice(actor, begin or 0, last, None)


def _slice(actor: Actor, begin: int, end: int, by: Record | None) -> Iterator[dict[str, Any]]:
    """What a process did as one program, up to the record that ended that; nothing of one whose start is not known."""
    if not actor.began_ns:
        return
    arguments: dict[str, Any] = {
        "program": maybe(actor.program) or "",
        "argv": command_line(actor.argv),
        "cwd": maybe(actor.cwd) or "",
        "parent": actor.ppid,
        "by": "the harness's own check" if actor.harness else "the agent",
    }
    if by is None:
        arguments["end"] = "still running at the end"
    elif by.kind is Kind.EXIT:
        arguments["end"] = signal_name(by.args[1]) or f"exit {by.args[0]}"
    yield {
        "ph": "X",
        "name": shown((actor.program or actor.comm).rpartition(b"/")[2], 64) or "?",
        "cat": "process",
        "pid": actor.pid,
        "tid": actor.pid,
        "ts": _us(actor.began_ns, begin),
        "dur": max(0.0, _us(end, actor.began_ns)),
        "args": arguments,
    }


def _mark(record: Record, begin: int) -> dict[str, Any]:
    word = op_name(record)
    kind = record.kind.name.lower()
    place = record.place or record.asked or record.name
    address = Address(record.addr)
    arguments: dict[str, Any] = {"seq": record.seq, "result": errno_name(record.error) or "0"}
    if place is not None:
        arguments["path"] = shown(place)
    if (new := record.new_place) is not None:
        arguments["new"] = shown(new)
    if record.kind is Kind.EXEC:
        arguments["argv"] = command_line(record.argv or ())
    if address.known:
        arguments["address"] = address.name if address.ip is None else f"{address.ip} port {address.port}"
    return {
        "ph": "i",
        "s": "t",
        "name": f"{kind} {word}" if word else kind,
        "cat": kind,
        "pid": record.pid,
        "tid": record.tid,
        "ts": _us(record.time_ns, begin),
        "args": arguments,
    }


def _name(what: str, actor: Actor, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": actor.pid, "tid": actor.pid, "args": arguments}


def _us(time_ns: int, begin: int) -> float:
    return (time_ns - begin) / 1000
