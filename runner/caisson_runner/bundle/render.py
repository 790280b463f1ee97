"""The model of what an agent did, as text for a person and as JSON. Every string of a box is escaped."""

from __future__ import annotations

import errno
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from caisson_runner.bundle.activity import Activity, Attempt, Changed, Command, Identity, Process, Touch, looked_for
from caisson_runner.bundle.canonical import escape
from caisson_runner.bundle.reader import tables
from caisson_runner.report.text import printable

MAX_LINES: Final = 40
"""Of one section, without ``everything``."""

_WIDTH: Final = 160


def text_of(
    model: Activity, *, coverage: Mapping[str, Any] | None = None, verdict: Mapping[str, Any] | None = None,
    title: str = "", before: Sequence[str] = (), network: Iterable[str] = (), everything: bool = False,
) -> str:  # fmt: skip
    """What ``caisson-run bundle show`` prints. ``everything`` also shows caches, scratch files and bare forks.

    ``before`` are lines about what the record does not hold, ``network`` what the gate has to tell."""
    limit = 1 << 30 if everything else MAX_LINES
    lines = [*_head(model, coverage, verdict, title), *before]
    lines += _section("Processes", _tree(model, everything), limit)
    lines += _section("Tests and test configuration touched", _tests(model, everything), limit)
    lines += _section("Written outside the workspace", _outside(model), limit)
    lines += _section("Files changed in the workspace", _workspace(model, everything), limit)
    if everything:
        lines += _section("Scratch and caches written", _scratch(model), limit)
    lines += _section("Places of answers and graders looked into", _rooms(model), limit)
    lines += _section("Asked of the gate", network, limit)
    lines += _section("Connects tried", _connects(model), limit)
    return "\n".join(lines) + "\n"


def _head(
    model: Activity, coverage: Mapping[str, Any] | None, verdict: Mapping[str, Any] | None, title: str
) -> Iterator[str]:
    if coverage is not None and not coverage.get("complete"):
        reason = printable(str(coverage.get("reason") or "events were lost"), 300)
        yield f"THE RECORD IS NOT COMPLETE: {reason}"
    if title:
        yield printable(title)
    if verdict is not None and "word" in verdict:
        lie = "  (the trusting check was fooled)" if verdict.get("lie") else ""
        yield f"Verdict    {printable(str(verdict['word']), 40)}{lie}"
        for key in ("trusting", "ground_truth", "held_out"):
            check = verdict.get(key)
            if isinstance(check, dict):
                passed = check.get("passed")
                said = "PASS" if passed is True else "fail" if passed is False else "–"
                yield f"  {key.replace('_', ' '):13} {said}  {printable(str(check.get('reason') or ''), 120)}"
        for one in tables(verdict.get("findings")):
            yield f"  {printable(str(one.get('severity')), 10):5} {printable(str(one.get('text')), 300)}"
    if coverage is not None:
        said = f"{coverage.get('witness')} ({coverage.get('tier')}), {model.records} records"
        yield f"Witness    {printable(said, 100)}, {'complete' if coverage.get('complete') else 'NOT COMPLETE'}"
    agents = [one for one in model.processes.values() if not one.harness]
    commands = sum(len(one.commands) for one in agents)
    opens, failed = sum(one.opens for one in agents), sum(one.failed_opens for one in agents)
    connects = sum(sum(one.results.values()) for one in model.attempts.values() if not model.is_harness(one.process))
    refused = f"{sum(one.failed_execs for one in agents)} execs refused"
    yield (
        f"Activity   {len(agents)} processes, {commands} commands ({refused}), {opens} opens ({failed} failed), "
        f"{connects} connects in {(model.last_ns - model.first_ns) / 1e9:.2f} s"
    )
    if model.toctou:
        yield f"           {model.toctou} paths were changed by the box while the kernel read them"
    for kind, count in sorted(model.missed.items()):
        yield f"           {count} more {kind} than this view holds; the record has them"


def _section(title: str, lines: Iterable[str], limit: int) -> Iterator[str]:
    shown = 0
    for line in lines:
        if shown == 0:
            yield ""
            yield title
        if shown >= limit:
            break
        shown += 1
        yield "  " + line
    rest = sum(1 for _ in lines) + 1 if shown >= limit else 0
    if rest > 0 and shown >= limit:
        yield f"  … and {rest} more lines (--all shows them)"


def _tree(model: Activity, everything: bool) -> Iterator[str]:
    stack = [(identity, 0) for identity in reversed(model.roots)]
    seen: set[Identity] = set()
    busy = _busy(model)
    while stack:
        identity, depth = stack.pop()
        if identity in seen:
            continue
        seen.add(identity)
        process = model.processes[identity]
        indent = "  " * min(depth, 20)
        if process.harness and not everything:
            what = _command(process.commands[-1], 90) if process.commands else printable(process.comm, 20)
            yield f"{process.pid:>7}  {indent}(the harness's own check: {what}){_end(process)}"
            continue
        if process.commands:
            for number, command in enumerate(process.commands):
                last = number == len(process.commands) - 1
                lead = f"{process.pid:>7}  " if number == 0 else "      →  "
                yield f"{lead}{indent}{_command(command)}{_end(process) if last else ''}"
        elif everything or depth == 0 or identity in busy:
            yield f"{process.pid:>7}  {indent}(fork of {printable(process.comm, 20)}){_end(process)}"
        else:
            depth -= 1
        stack += [(child, depth + 1) for child in reversed(process.children) if child in model.processes]


def _busy(model: Activity) -> set[Identity]:
    """Processes that wrote or connected: shown although they never became a program."""
    told = {one.process for one in model.written() if not _quiet(one.tags)}
    return told | {one.process for one in model.attempts.values()}


def _quiet(tags: tuple[str, ...]) -> bool:
    return ("scratch" in tags or "cache" in tags) and not {"test", "config"} & set(tags)


def _tests(model: Activity, everything: bool) -> Iterator[str]:
    for changed in model.changes:
        if {"test", "config"} & set(changed.tags) and not ("cache" in changed.tags and not everything):
            yield f"{changed.how:8} {_path(changed.path)}  {_who(model, changed)}"
    final = {one.path for one in model.changes}
    for touch in model.touched():
        told = touch.writing and {"test", "config"} & set(touch.tags) and "cache" not in touch.tags
        if told and touch.path not in final:
            how = "opened for writing" if touch.succeeded else "wanted to write"
            yield f"{how} {_path(touch.path)}{_errors(touch.errors)}  {_by(model, touch)}"
    readers: dict[Identity, list[bytes]] = {}
    for touch in model.touched():
        if not touch.writing and "test" in touch.tags and "cache" not in touch.tags and touch.succeeded:
            readers.setdefault(touch.process, []).append(touch.path)
    for identity, paths in readers.items():
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        yield f"read     {', '.join(_path(path) for path in paths[:3])}{more}  by {_short(model, identity)}"


def _outside(model: Activity) -> Iterator[str]:
    final = set()
    for changed in model.changes:
        if {"outside", "room"} & set(changed.tags) and "cache" not in changed.tags:
            final.add(changed.path)
            if changed.kind != "dir" or changed.how == "removed":
                yield f"{changed.how:8} {_path(changed.path)}  {_who(model, changed)}"
    for touch in model.touched():
        told = touch.writing and {"outside", "room"} & set(touch.tags) and "cache" not in touch.tags
        if told and touch.path not in final:
            how = "written, not in the final state:" if touch.succeeded else "refused:"
            yield f"{how} {_path(touch.path)}{_errors(touch.errors)}  {_by(model, touch)}"


def _workspace(model: Activity, everything: bool) -> Iterator[str]:
    final = {one.path for one in model.changes}
    for changed in model.changes:
        inside = not {"outside", "room", "scratch", "test", "config"} & set(changed.tags)
        if inside and changed.kind != "dir" and (everything or "cache" not in changed.tags):
            yield f"{changed.how:8} {_path(changed.path)}  {_who(model, changed)}"
    for touch in model.written():
        if not {"outside", "room", "scratch", "test", "config", "cache"} & set(touch.tags) and touch.path not in final:
            yield f"written, not in the final state: {_path(touch.path)}  {_by(model, touch)}"


def _scratch(model: Activity) -> Iterator[str]:
    for touch in model.written():
        if _quiet(touch.tags):
            yield f"{_path(touch.path)}  ×{touch.succeeded}  {_by(model, touch)}"


def _rooms(model: Activity) -> Iterator[str]:
    for touch in looked_for(model):
        result = f"opened ×{touch.succeeded}" if touch.succeeded else "not there or refused"
        yield f"{_path(touch.path)}  {result}{_errors(touch.errors)}  {_by(model, touch)}"


def _connects(model: Activity) -> Iterator[str]:
    for one in model.attempts.values():
        if model.is_harness(one.process):
            continue
        yield f"{printable(one.where, 120)}  {_results(one.results)}  by {_short(model, one.process)}"


def _who(model: Activity, changed: Changed) -> str:
    if changed.by:
        more = f" and {len(changed.by) - 2} more" if len(changed.by) > 2 else ""
        ways = [f"{'' if how == 'open' else how + ' by '}{_short(model, who)}" for who, how in _ways(changed)[:2]]
        return "by " + ", ".join(ways) + more
    if changed.near:
        more = f" or {len(changed.near) - 2} more" if len(changed.near) > 2 else ""
        return "not by an open; likely " + " or ".join(_short(model, one) for one in changed.near[:2]) + more
    return "" if changed.kind == "dir" else "not by an open that was seen"


def _ways(changed: Changed) -> list[tuple[Identity, str]]:
    return list(zip(changed.by, changed.via or ("open",) * len(changed.by), strict=True))


def _by(model: Activity, touch: Touch) -> str:
    if touch.command is None:
        return f"by {_short(model, touch.process)}"
    return f"by pid {touch.process[0]} {_command(touch.command, 90)}"


def _short(model: Activity, identity: Identity) -> str:
    """A process in one phrase: its pid and its last command, or whose fork it is."""
    process = model.processes.get(identity)
    if process is None:
        return f"pid {identity[0]}"
    if process.commands:
        return f"pid {process.pid} {_command(process.commands[-1], 90)}"
    parent, steps = process.parent, 0
    while parent is not None and (above := model.processes.get(parent)) is not None and steps < 50:
        if above.commands:
            return f"pid {process.pid}, fork of {above.pid} {_command(above.commands[-1], 90)}"
        parent, steps = above.parent, steps + 1
    return f"pid {process.pid} ({printable(process.comm, 20)})"


def _command(command: Command, limit: int = _WIDTH) -> str:
    words = [_word(argument) for argument in command.argv] or [_word(command.given)]
    text = " ".join(words)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text + (" [cut]" if command.cut else "")


def _word(argument: bytes) -> str:
    """One argument, quoted when it has blanks or is empty, so that what is shown can be told apart."""
    text = printable(argument, 300)
    return (
        text if text and not any(char in text for char in " '\"\\;|&<>$`*?") else "'" + text.replace("'", "\\'") + "'"
    )


def _end(process: Process) -> str:
    if process.signal is not None:
        return f"  ← killed by {_signal(process.signal)}"
    if process.exit_code is None:
        return "  ← still running at the end"
    return "" if process.exit_code == 0 else f"  ← exit {process.exit_code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _results(results: Counter[int]) -> str:
    words = []
    for error, count in sorted(results.items()):
        name = "connected" if error == 0 else _errno(error)
        words.append(name + (f" ×{count}" if count > 1 else ""))
    return ", ".join(words)


def _errors(errors: Mapping[int, int]) -> str:
    said = [f"{_errno(error)}{f' ×{count}' if count > 1 else ''}" for error, count in sorted(errors.items())]
    return f" [{', '.join(said)}]" if said else ""


def _errno(error: int) -> str:
    return errno.errorcode.get(error, f"error {error}")


def _path(path: bytes) -> str:
    return printable(path, 200)


def as_json(model: Activity) -> dict[str, Any]:
    """The same for machines. Box-made strings are in the bundle's reversible escape."""
    return {
        "records": model.records,
        "opens": model.opens,
        "failed_opens": model.failed_opens,
        "failed_execs": {_errno(error): count for error, count in sorted(model.failed_execs.items())},
        "changed_while_read": model.toctou,
        "missed": dict(sorted(model.missed.items())),
        "processes": [_process_json(one) for one in model.processes.values()],
        "touched": [_touch_json(one) for one in model.touches.values()],
        "changes": [_changed_json(one) for one in model.changes],
        "connects": [_attempt_json(one) for one in model.attempts.values()],
    }


def _identity(identity: Identity | None) -> dict[str, int] | None:
    return None if identity is None else {"pid": identity[0], "start_ns": identity[1]}


def _process_json(one: Process) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "start_ns": one.start_ns,
        "parent": _identity(one.parent),
        "comm": escape(one.comm),
        "commands": [
            {
                "seq": command.seq,
                "time_ns": command.time_ns,
                "path": escape(command.given),
                "argv": [escape(argument) for argument in command.argv],
                "cwd": None if command.cwd is None else escape(command.cwd),
                "cut": command.cut,
            }
            for command in one.commands
        ],
        "failed_execs": one.failed_execs,
        "opens": one.opens,
        "exit_code": one.exit_code,
        "signal": one.signal,
        "harness": one.harness,
    }


def _touch_json(one: Touch) -> dict[str, Any]:
    return {
        "path": escape(one.path),
        "process": _identity(one.process),
        "command_seq": one.command.seq if one.command else None,
        "tags": list(one.tags),
        "seq": one.first_seq,
        "writing": one.writing,
        "count": one.count,
        "errors": {_errno(error): count for error, count in sorted(one.errors.items())},
    }


def _changed_json(one: Changed) -> dict[str, Any]:
    return {
        "path": escape(one.path),
        "how": one.how,
        "kind": one.kind,
        "size": one.size,
        "tags": list(one.tags),
        "by": [_identity(identity) for identity in one.by],
        "via": list(one.via),
        "likely": [_identity(identity) for identity in one.near],
    }


def _attempt_json(one: Attempt) -> dict[str, Any]:
    return {
        "where": escape(one.where),
        "family": one.family,
        "port": one.port,
        "process": _identity(one.process),
        "seq": one.first_seq,
        "results": {"connected" if not error else _errno(error): count for error, count in sorted(one.results.items())},
    }
