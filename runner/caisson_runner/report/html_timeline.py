"""Processes over time: a tree of commands, each with a bar of when it lived and marks where findings point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from caisson_runner.bundle.activity import Activity, Identity, Process
from caisson_runner.export.text import command_line, shown, signal_name
from caisson_runner.report.html_events import Told
from caisson_runner.report.html_tags import Html, code, joined, tag
from caisson_runner.report.text import seconds

MAX_PROCESSES: Final = 300
_SCALE: Final = 1000


def timeline(model: Activity, told: Told, number: int, marks: Mapping[int, str]) -> Html:
    """The tree. ``marks`` are events to show, with the severity of what points at them."""
    start = model.first_ns
    span = max(1, model.last_ns - start)
    rows: list[Html] = []
    hidden = 0
    for process, depth in _tree(model):
        if len(rows) >= MAX_PROCESSES or not (process.commands or depth == 0):
            hidden += 1
            continue
        rows.append(_row(model, told, process, depth, number, start, span, marks))
    parts = [
        tag(
            "p",
            f"{_ms(span)} from the first event to the last. A bar is a process’s life; marks on it are events that a "
            "finding points at. A command leads to its event.",
            class_="quiet",
        ),
        tag("ol", rows, class_="timeline", role="list"),
    ]  # fmt: skip
    if hidden:
        parts.append(tag("p", f"{hidden:,} more processes ran no program of their own, or are beyond this view; "
                              "their events are in the list below.", class_="quiet"))  # fmt: skip
    return joined(parts)


def _tree(model: Activity) -> Iterator[tuple[Process, int]]:
    stack = [(identity, 0) for identity in reversed(model.roots)]
    seen: set[Identity] = set()
    while stack:
        identity, depth = stack.pop()
        if identity not in seen:
            seen.add(identity)
            process = model.processes[identity]
            yield process, depth
            stack += [(child, depth + 1) for child in reversed(process.children) if child in model.processes]


def _row(
    model: Activity, told: Told, process: Process, depth: int, number: int, start: int, span: int,
    marks: Mapping[int, str],
) -> Html:  # fmt: skip
    begun = max(start, process.start_ns if process.start_ns > start else _first(process, start))
    end = told.ends.get(process.identity, begun)
    left = _SCALE * (begun - start) / span
    width = max(4.0, _SCALE * (end - begun) / span)
    left = min(left, _SCALE - 4.0)
    lines = []
    for at, command in enumerate(process.commands):
        lead = tag("span", "→ ", class_="quiet", aria_label="then became") if at else None
        link = tag(
            "a", code(command_line(command.argv or (command.given,), 300), 160), href=f"#e-{number}-{command.seq}"
        )
        lines.append(tag("div", lead, link))
    if not lines:
        lines.append(tag("div", code(f"({shown(process.comm, 20)})")))
    moment = f"{(begun - start) / 1e6:.1f} ms to {(end - start) / 1e6:.1f} ms"
    own = [
        (seq, severity, _SCALE * (told.owners[seq][1] - start) / span)
        for seq, severity in marks.items()
        if seq in told.owners and told.owners[seq][0] == process.identity
    ]
    ticks = [
        tag("rect", x=f"{min(max(at - 2, 0), _SCALE - 4):.1f}", y="0", width="4", height="14", class_=severity)
        for _seq, severity, at in own
    ]
    bar = tag(
        "svg", tag("rect", x=f"{left:.1f}", y="3", width=f"{min(width, _SCALE - left):.1f}", height="8", rx="2"), ticks,
        viewBox=f"0 0 {_SCALE} 14", preserveAspectRatio="none", role="img", aria_label=f"ran from {moment}",
        class_="bar harness" if process.harness else "bar",
    )  # fmt: skip
    badges = [
        tag("a", f"finding at event {seq}", href=f"#e-{number}-{seq}", class_=f"badge {severity}")
        for seq, severity, _at in own[:5]
    ]
    note = _end(process)
    ended = tag("span", f" · {note}", class_="bad") if note else None
    return tag(
        "li",
        tag("span", process.pid, class_="pid"),
        tag(
            "div", lines,
            tag("div", "the harness’s own check, not the agent", class_="quiet") if process.harness else None,
            tag("div", [[one, " "] for one in badges]) if badges else None, class_=f"cmd d{min(depth, 12)}",
        ),
        tag("div", bar, tag("span", f"+{_ms(begun - start)}, for {_ms(end - begun)}", ended, class_="len"),
            class_="life"),
        class_="harness" if process.harness else None,
    )  # fmt: skip


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1_000_000_000 else seconds(ns / 1e9)


def _first(process: Process, start: int) -> int:
    return process.commands[0].time_ns if process.commands else start


def _end(process: Process) -> str:
    if process.signal is not None:
        return f"killed by {signal_name(process.signal)}"
    if process.exit_code is None:
        return "still running at the end"
    return f"exit {process.exit_code}" if process.exit_code else ""
