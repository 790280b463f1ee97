"""`caisson-run bundle events`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from caisson_proto.record import Record

from caisson_runner.bundle import COVERAGE, Bundle
from caisson_runner.bundle.filters import Filter, filter_of, moment
from caisson_runner.commands.common import say
from caisson_runner.export import Scene
from caisson_runner.export.scene import Actors


def bundle_events_command(
    path: Path,
    pid: int | None,
    kinds: Sequence[str],
    paths: Sequence[str],
    errors: Sequence[str],
    failed: bool,
    start: str,
    end: str | None,
    harness: bool | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """Streams: nothing is held but one frame of the record and the processes that live."""
    wanted = filter_of(kinds, paths, errors, failed, harness)
    bundle = Bundle.open(path)
    scene = Scene.of(bundle)
    frames = bundle.index().frames
    first_ns = frames[0].first_ns if frames else 0
    times = (moment(start, first_ns), None if end is None else moment(end, first_ns))
    if bundle.has(COVERAGE) and not scene.coverage.get("complete"):
        say(f"the record is not complete: {scene.coverage.get('reason') or 'events were lost'}")
    events = islice(_picked(bundle, scene, wanted, times, pid), limit)
    if as_json:
        from caisson_runner.export.jsonl import lines as as_jsonl

        for encoded in as_jsonl(scene, (record for record, _ in events)):
            sys.stdout.write(encoded.decode("ascii"))
    else:
        from caisson_runner.report.events import lines

        for text in lines(events, first_ns):
            sys.stdout.write(text + "\n")
    return 0


def _picked(
    bundle: Bundle, scene: Scene, wanted: Filter, times: tuple[int, int | None], pid: int | None
) -> Iterator[tuple[Record, bool]]:
    """The events that are wanted, and of each whether the harness's own check did it.

    Whose a process is, forks before it tell. So where only a part of the record is asked for, by pid or time, and not
    by whom, it is not said, and only that part is unpacked.
    """
    start, end = times
    harness = scene.harness()
    if not harness or (wanted.harness is None and (start or pid is not None)):
        records = bundle.records(start, end, pid)
        yield from ((record, False) for record in records if wanted.wants(record))
        return
    actors = Actors(harness)
    for record in bundle.records(end=end):
        own = actors.before(record).harness
        if record.time_ns >= start and (pid is None or record.pid == pid) and wanted.wants(record, own):
            yield record, own
        actors.after(record)
