"""What differs between two runs, as lines for a terminal and as JSON. Every string of a box is escaped already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caisson_runner.bundle.difference import Difference, Done, Section
from caisson_runner.report.text import printable

MAX_LINES: Final = 30
"""Of one side of a section, without ``everything``."""
_WIDTH: Final = 160


def lines(found: Difference, names: tuple[str, str], everything: bool = False) -> Iterator[str]:
    """``<`` is what only A did, ``>`` what only B did; ``#`` is the event that shows it."""
    yield printable(f"A  {found.who[0]}  ({names[0]})", 2 * _WIDTH)
    yield printable(f"B  {found.who[1]}  ({names[1]})", 2 * _WIDTH)
    for note in found.notes:
        yield printable(f"   {note}", 400)
    if found.words:
        yield ""
        for name, a, b in found.words:
            yield printable(f"{name:<13} A {a}, B {b}", 400)
    limit = 1 << 30 if everything else MAX_LINES
    for section in (found.findings, *found.sections):
        if section.only_a or section.only_b:
            yield ""
            yield section.name.capitalize() + (f" ({section.both} in both)" if section.both else "")
            yield from _side("<", section.only_a, limit)
            yield from _side(">", section.only_b, limit)
    if found.state:
        yield ""
        yield "Final state"
        for path, a, b in found.state[:limit]:
            yield printable(f"  {path}", _WIDTH)
            yield printable(f"    < {a}", _WIDTH)
            yield printable(f"    > {b}", _WIDTH)
        if len(found.state) > limit:
            yield f"  … and {len(found.state) - limit} more (--all)"
    yield ""
    if found.same:
        yield "no difference"
    if found.hidden:
        yield f"{found.hidden} differences in caches, scratch files and reads of the system are not told (--all)"


def _side(mark: str, only: Mapping[str, Done], limit: int) -> Iterator[str]:
    for text, done in list(only.items())[:limit]:
        event = f"  #{done.first_seq}" if done.first_seq else ""
        times = f" ×{done.count}" if done.count > 1 else ""
        yield printable(f"  {mark} {text}", _WIDTH) + times + event
    if len(only) > limit:
        yield f"  {mark} … and {len(only) - limit} more (--all)"


def as_json(found: Difference, names: tuple[str, str]) -> dict[str, Any]:
    """The same for machines, nothing cut."""
    return {
        "schema": "caisson.difference/v1",
        "a": names[0],
        "b": names[1],
        "who": list(found.who),
        "same": found.same,
        "answers": [{"name": name, "a": a, "b": b} for name, a, b in found.words],
        "findings": _json(found.findings),
        "sections": {section.name: _json(section) for section in found.sections},
        "state": [{"path": path, "a": a, "b": b} for path, a, b in found.state],
        "hidden": found.hidden,
        "notes": list(found.notes),
    }


def _json(section: Section) -> dict[str, Any]:
    def side(only: Mapping[str, Done]) -> list[dict[str, Any]]:
        return [{"what": text, "count": done.count, "first_seq": done.first_seq} for text, done in only.items()]

    return {"only_a": side(section.only_a), "only_b": side(section.only_b), "both": section.both}
