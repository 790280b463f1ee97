"""What `bundle show` says of a record that began in the middle: since when, and what was there before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caisson_runner.report.text import printable

NAME: Final = "attach.json"
_MOST: Final = 12


def lines_of(document: Mapping[str, Any], everything: bool) -> Iterator[str]:
    """Lines for a terminal. Damaged parts are left out."""
    container, since, until = (_table(document.get(key)) for key in ("container", "since", "until"))
    name = str(container.get("name") or container.get("id") or document.get("cgroup") or "?")
    yield f"Attached   {printable(name, 80)} {printable(str(container.get('id') or ''), 12)}"
    yield (
        f"  recorded from {printable(str(since.get('wall')), 40)} (boot clock {since.get('boottime_ns')} ns) "
        f"to {printable(str(until.get('wall')), 40)}: {printable(str(document.get('ended')), 40)}"
    )
    already = _table(document.get("already"))
    processes = [one for one in already.get("processes") or () if isinstance(one, dict)]
    opened = sum(len(one.get("open") or ()) for one in processes)
    mapped = {str(path) for one in processes for path in one.get("mapped") or ()}
    yield (
        f"  what it did before is not in this record; then {len(processes)} processes were running, "
        f"{opened} descriptors open, {len(mapped)} files mapped executable"
    )
    if already.get("cut"):
        yield f"  the list was too long and lacks some {printable(', '.join(map(str, already['cut'])), 80)}"
    for one in processes[: None if everything else _MOST]:
        argv = " ".join(str(word) for word in one.get("argv") or ()) or f"[{one.get('name')}]"
        yield f"    {one.get('pid')}  {printable(argv, 100)}"
        if everything:
            yield f"      {printable(str(one.get('exe')), 150)} in {printable(str(one.get('cwd')), 150)}"
            for file in one.get("open") or ():
                yield f"      fd {file.get('fd')}  {printable(str(file.get('target')), 150)}"
    if len(processes) > _MOST and not everything:
        yield f"    and {len(processes) - _MOST} more; see --all"


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
