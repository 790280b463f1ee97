"""`caisson-run snapshot create`, `list` and `prune`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from caisson_runner.commands.common import emit, finish, say
from caisson_runner.report.text import size


def snapshot_create_command(
    task_name: str | None, rootfs: Path | None, label: str, bases: Sequence[str], as_json: bool
) -> int:
    """`caisson-run snapshot create`."""
    from dataclasses import replace

    from caisson_runner.boxes.local import LocalEngine
    from caisson_runner.boxes.store import SnapshotSpec
    from caisson_runner.session import BadOption
    from caisson_runner.tasks import load_task
    from caisson_runner.tasks.snapshot import parse_bases, snapshot_spec

    if (task_name is None) == (rootfs is None):
        raise BadOption("say what to make it from: either -p TASK or --rootfs TAR")
    if task_name is not None:
        spec = snapshot_spec(load_task(task_name), parse_bases(tuple(bases)))
        spec = replace(spec, label=label or spec.label)
    else:
        assert rootfs is not None
        spec = SnapshotSpec(base=rootfs, label=label)

    async def work() -> Any:
        async with LocalEngine() as engine:
            return await engine.snapshot(spec)

    made = finish(work())
    if as_json:
        emit({"id": made.id, "label": spec.label})
    else:
        print(made.id)
    return 0


def snapshot_list_command(as_json: bool) -> int:
    """`caisson-run snapshot list`."""
    from caisson_runner.boxes.errors import SnapshotChanged
    from caisson_runner.boxes.store import Snapshot, Store

    store = Store()

    def content(snapshot: Snapshot) -> int | None:
        try:
            return sum(entry.size for entry in store.index(snapshot).values())
        except SnapshotChanged as damage:
            say(str(damage))
            return None

    rows: list[dict[str, Any]] = [
        {
            "id": snapshot.id,
            "label": snapshot.label,
            "base": snapshot.base,
            "bytes": content(snapshot),
            "created": datetime.fromtimestamp(snapshot.created).astimezone().isoformat(timespec="seconds"),
        }
        for snapshot in store.list()
    ]
    if as_json:
        emit(rows)
        return 0
    from caisson_runner.report.terminal import grid

    grid(
        "Snapshots",
        ("id", "label", "base", "size", "made"),
        [
            (
                r["id"][:12],
                r["label"],
                r["base"][:24],
                "changed!" if r["bytes"] is None else size(r["bytes"]),
                r["created"],
            )
            for r in rows
        ],
    )
    return 0


def snapshot_prune_command(ids: Sequence[str], everything: bool, as_json: bool) -> int:
    """`caisson-run snapshot prune`."""
    from caisson_runner.boxes.errors import SnapshotInUse
    from caisson_runner.boxes.store import Store
    from caisson_runner.session import BadOption

    if ids and everything:
        raise BadOption("either ids of snapshots or --all, not both")
    store = Store()
    removed: list[str] = []
    names = [snapshot.id for snapshot in store.list()] if everything else list(ids)
    for name in names:
        try:
            removed += store.prune([name])
        except SnapshotInUse as busy:
            if not everything:
                raise
            say(str(busy))
    if not ids and not everything:
        removed = [*store.prune()]
    if as_json:
        emit({"removed": removed})
    else:
        print(f"{len(removed)} snapshot(s) removed")
    return 0
