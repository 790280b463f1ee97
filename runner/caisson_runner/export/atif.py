"""An ATIF 1.8 trajectory: what the witness saw as steps, or an agent's own trajectory with what was seen beside it.

Source: the Agent Trajectory Interchange Format of harbor 0.26 (Apache-2.0), ``harbor/models/trajectories``. No key is
added but below ``extra``.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from caisson_proto.record import Flag, Kind, Record

from caisson_runner.bundle.canonical import dumps
from caisson_runner.export.errors import ExportError
from caisson_runner.export.scene import Actors, Scene
from caisson_runner.export.text import Address, command_line, errno_name, maybe, shown, signal_name, stamp

VERSION: Final = "ATIF-v1.8"
MAX_STEPS: Final = 5_000
MAX_SHOWN: Final = 50
"""Paths, commands and addresses a step shows; how many there were is always told."""
MAX_TRAJECTORY: Final = 256 << 20
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_COMMAND_KEYS: Final = ("command", "cmd", "commands", "script", "keystrokes", "code", "input")
_PATH_KEYS: Final = ("path", "file_path", "filename", "file", "target_file", "notebook_path")


@dataclass(slots=True)
class Seen:
    """What happened between two moments; the first `MAX_SHOWN` of each."""

    commands: list[str] = field(default_factory=list)
    written: dict[str, None] = field(default_factory=dict)
    connects: dict[str, None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    first_seq: int = 0
    last_seq: int = 0
    programs: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        self.first_seq = self.first_seq or record.seq
        self.last_seq = record.seq
        kind = record.kind.name.lower()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if record.kind is Kind.EXEC and not record.error:
            _keep(self.commands, command_line(record.argv or (), 1024))
            if len(self.programs) < MAX_STEPS:
                self.programs.add(_leaf(record.argv[0] if record.argv else record.asked or b""))
        for path in written(record):
            if len(self.written) < MAX_SHOWN:
                self.written.setdefault(shown(path, 1024))
        if record.kind is Kind.CONNECT and len(self.connects) < MAX_SHOWN:
            self.connects.setdefault(f"{where(record)} {errno_name(record.error) or 'connected'}")

    def to_json(self) -> dict[str, Any]:
        return {
            "events": [self.first_seq, self.last_seq],
            "counts": dict(sorted(self.counts.items())),
            "commands": list(self.commands),
            "written": list(self.written),
            "connects": list(self.connects),
        }


def _keep(shelf: list[str], text: str) -> None:
    if len(shelf) < MAX_SHOWN:
        shelf.append(text)


def _leaf(path: bytes) -> str:
    return shown(path.rpartition(b"/")[2], 255)


def written(record: Record) -> tuple[bytes, ...]:
    """Paths that an event wrote to or altered."""
    if record.kind is Kind.OPEN and not record.error and record.open_flags & _WRITING:
        return (record.place,) if record.place is not None else ()
    return record.altered


def where(record: Record) -> str:
    """Where a connect went."""
    address = Address(record.addr)
    if address.ip is not None:
        return f"[{address.ip}]:{address.port}" if ":" in address.ip else f"{address.ip}:{address.port}"
    return f"unix:{address.name}" if address.name is not None else f"family {record.args[0]}"


def document(scene: Scene, records: Iterable[Record], given: bytes | None = None) -> bytes:
    """The trajectory. ``given`` is the agent's own, as the text of a file."""
    return dumps(witnessed(scene, records) if given is None else compared(scene, records, _read(given)))


def lines(scene: Scene, records: Iterable[Record]) -> Iterator[bytes]:
    """What the witness saw, as one document."""
    yield document(scene, records)


def _about(scene: Scene) -> dict[str, Any]:
    return {
        "run": scene.name,
        "task": scene.task,
        "verdict": scene.verdict.get("word"),
        "lie": scene.verdict.get("lie"),
        "complete": scene.coverage.get("complete") is True,
        "findings": [{"rule": one.get("rule"), "severity": one.get("severity")} for one in scene.findings],
    }


def witnessed(scene: Scene, records: Iterable[Record]) -> dict[str, Any]:
    """A step for every program that the agent's processes became, `MAX_STEPS` at most."""
    steps: list[dict[str, Any]] = [
        {
            "step_id": 1,
            "source": "system",
            "message": f"What the witness saw of {scene.agent or 'the agent'} at the task {scene.task or '?'}.",
        }
    ]
    running: dict[tuple[int, int], tuple[dict[str, Any], Seen]] = {}
    harness = set(scene.harness())
    actors = Actors()
    left_out = 0
    for record in records:
        if record.pid in harness:
            if record.kind is Kind.FORK:
                harness.add(record.args[0])
            continue
        actors.before(record)
        if record.kind is Kind.EXEC and not record.error:
            if record.identity in running:
                _close(*running.pop(record.identity), "became another program")
            if len(steps) >= MAX_STEPS:
                left_out += 1
            else:
                step = _step(scene, record, len(steps) + 1)
                steps.append(step)
                running[record.identity] = step, Seen()
        elif record.identity in running:
            running[record.identity][1].add(record)
            if record.kind is Kind.EXIT and not record.flags & Flag.THREAD:
                _close(*running.pop(record.identity), signal_name(record.args[1]) or f"exit {record.args[0]}")
        actors.after(record)
    for step, seen in running.values():
        _close(step, seen, "still running at the end")
    value = {
        "schema_version": VERSION,
        "session_id": scene.name,
        "agent": {"name": scene.agent or "unknown", "version": "unknown"},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps)},
        "extra": {"caisson": _about(scene)},
    }
    if left_out:
        value["notes"] = f"{left_out} more programs were run; the first {MAX_STEPS - 1} are shown."
    return value


def _step(scene: Scene, record: Record, number: int) -> dict[str, Any]:
    argv = [shown(one, 1024) for one in (record.argv or ())[:MAX_SHOWN]]
    return {
        "step_id": number,
        "timestamp": stamp(scene.wall_ns(record.time_ns)),
        "source": "agent",
        "message": "",
        "llm_call_count": 0,
        "tool_calls": [
            {
                "tool_call_id": f"exec-{record.seq}",
                "function_name": "exec",
                "arguments": {"argv": argv, "cwd": maybe(record.cwd), "path": maybe(record.asked)},
            }
        ],
        "extra": {"caisson": {"pid": record.pid, "seq": record.seq}},
    }


def _close(step: dict[str, Any], seen: Seen, how: str) -> None:
    told = [how]
    if seen.written:
        told.append("wrote " + ", ".join(seen.written))
    if seen.connects:
        told.append("connect " + ", ".join(seen.connects))
    call = step["tool_calls"][0]["tool_call_id"]
    step["observation"] = {"results": [{"source_call_id": call, "content": "; ".join(told)}]}
    step["extra"]["caisson"] |= {"end": how, "seen": seen.to_json()}


def _read(text: bytes) -> dict[str, Any]:
    """An agent's trajectory; only what is relied on is checked."""
    try:
        if len(text) > MAX_TRAJECTORY:
            raise ValueError("it is too large")
        value = json.loads(text)
        if not isinstance(value, dict) or not str(value.get("schema_version")).startswith("ATIF-v1."):
            raise ValueError("its schema_version is none of ATIF-v1")
        if not isinstance(value.get("steps"), list) or not all(isinstance(one, dict) for one in value["steps"]):
            raise ValueError("it has no list of steps")
    except (ValueError, RecursionError) as error:
        raise ExportError(f"the trajectory is not ATIF: {error}") from None
    return value


def compared(scene: Scene, records: Iterable[Record], trajectory: dict[str, Any]) -> dict[str, Any]:
    """The agent's trajectory with ``extra.caisson`` in every step that has a time: claimed against witnessed."""
    if not scene.anchor_ns:
        raise ExportError(f"{scene.name} has no wall-clock anchor, so steps and events cannot be put side by side")
    steps: list[dict[str, Any]] = trajectory["steps"]
    timed = sorted(
        (moment, at) for at, step in enumerate(steps) if (moment := _moment(step.get("timestamp"))) is not None
    )
    moments = [moment for moment, _at in timed]
    windows = [Seen() for _ in range(len(timed) + 1)]
    harness = set(scene.harness())
    for record in records:
        if record.pid in harness:
            if record.kind is Kind.FORK:
                harness.add(record.args[0])
            continue
        windows[bisect.bisect_right(moments, scene.wall_ns(record.time_ns))].add(record)
    for (_moment_ns, at), seen in zip(timed, windows[1:], strict=True):
        step = steps[at]
        extra = step.get("extra")
        step["extra"] = (extra if isinstance(extra, dict) else {}) | {"caisson": _difference(step, seen)}
    extra = trajectory.get("extra")
    about = _about(scene) | {"before_first_step": windows[0].to_json(), "steps_without_time": len(steps) - len(timed)}
    return trajectory | {"extra": (extra if isinstance(extra, dict) else {}) | {"caisson": about}}


def _difference(step: Mapping[str, Any], seen: Seen) -> dict[str, Any]:
    commands, paths = claims(step)
    told = "\n".join([*commands, *paths])
    unseen = [one for one in commands if not _was_run(one, seen)]
    unseen += [one for one in paths if not any(path.endswith(one.lstrip("./")) for path in seen.written)]
    return {
        "claimed": {"commands": commands, "paths": paths},
        "witnessed": seen.to_json(),
        "claimed_not_witnessed": unseen,
        "witnessed_not_claimed": [path for path in seen.written if path.rpartition("/")[2] not in told],
    }


def claims(step: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Commands and paths to write that the step's tool calls name; cut."""
    commands: list[str] = []
    paths: list[str] = []
    calls = step.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if not isinstance(arguments, dict):
            continue
        for key in _COMMAND_KEYS:
            value = arguments.get(key)
            words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
            if joined := " ".join(str(word) for word in words):
                _keep(commands, joined[:1024])
        name = str(call.get("function_name") or "").lower()
        if any(word in name for word in ("write", "edit", "create", "replace", "patch")):
            for key in _PATH_KEYS:
                if isinstance(arguments.get(key), str):
                    _keep(paths, arguments[key][:1024])
    return commands, paths


def _was_run(command: str, seen: Seen) -> bool:
    """The command stands in something that was run, or its program was."""
    text = command.strip()
    if any(text in one or text.replace("'", "'\\''") in one for one in seen.commands):
        return True
    words: Sequence[str] = text.split()
    return bool(words) and words[0].rpartition("/")[2] in seen.programs


def _moment(text: object) -> int | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = aware.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000_000 + aware.microsecond * 1000
