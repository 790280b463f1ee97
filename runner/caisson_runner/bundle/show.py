"""A bundle, read and shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from caisson_runner.bundle import attached, network
from caisson_runner.bundle.activity import Activity, activity
from caisson_runner.bundle.reader import Bundle, numbers
from caisson_runner.bundle.render import as_json, text_of
from caisson_runner.bundle.writer import COVERAGE, RUN, VERDICT
from caisson_runner.report.text import printable

_NAMES: Final = (("task", "id"), ("agent", "name"))


def render(bundle: Bundle, everything: bool = False) -> None:
    """Prints what `show` says."""
    sys.stdout.write(show(bundle, everything=everything))


def summary_json(bundle: Bundle, everything: bool = False) -> dict[str, Any]:
    """The same for machines. Unless ``everything`` is asked for, without what was only scratch or cache."""
    found = as_json(model_of(bundle))
    if not everything:
        noise = {"scratch", "cache"}
        found["touched"] = [one for one in found["touched"] if not noise & set(one["tags"])]
    return {
        "run": _json(bundle, RUN),
        "verdict": _json(bundle, VERDICT),
        "coverage": _json(bundle, COVERAGE),
        "attached": _json(bundle, attached.NAME),
        "activity": found,
        "gate": [one.to_json() for one in network.asked_of(bundle.root)],
    }


def model_of(
    bundle: Bundle, *, workspace: bytes | str | None = None, test_paths: Sequence[bytes | str] | None = None
) -> Activity:
    """What the agent of a bundle did. Workspace and tests are taken from ``run.json`` (``task.workspace``,
    ``task.visible_tests``) unless given, and which processes were the harness's (``harness_pids``)."""
    run = _json(bundle, RUN)
    task = _table(run.get("task"))
    return activity(
        bundle.records(),
        bundle.changes(),
        workspace if workspace is not None else str(task.get("workspace") or "/app"),
        test_paths if test_paths is not None else _texts(task.get("visible_tests")),
        numbers(run.get("harness_pids")),
    )


def show(
    bundle: Bundle,
    *,
    workspace: bytes | str | None = None,
    test_paths: Sequence[bytes | str] | None = None,
    everything: bool = False,
) -> str:
    """The text of ``caisson-run bundle show``."""
    run = _json(bundle, RUN)
    names = [str(run.get("id") or bundle.root.name)]
    names += [
        str(name) for key in ("task", "agent") if (name := _table(run.get(key)).get("id" if key == "task" else "name"))
    ]
    before = list(attached.lines_of(_json(bundle, attached.NAME), everything)) if bundle.has(attached.NAME) else []
    model = model_of(bundle, workspace=workspace, test_paths=test_paths)
    names_of = {
        process.pid: printable(b" ".join(process.commands[-1].argv).decode("utf-8", "replace"), 60)
        for process in model.processes.values()
        if process.commands
    }
    return text_of(
        model,
        coverage=_json(bundle, COVERAGE) if bundle.has(COVERAGE) else None,
        verdict=_json(bundle, VERDICT) if bundle.has(VERDICT) else None,
        title="Run        " + ", ".join(names),
        before=before,
        network=network.lines_of(network.asked_of(bundle.root), names_of),
        everything=everything,
    )


def _json(bundle: Bundle, name: str) -> dict[str, Any]:
    return _table(bundle.json(name)) if bundle.has(name) else {}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
