"""The evidence of one run: a directory that a third party can check, and what is read out of it.

Writing::

    with BundleWriter(Path("out/run-1")) as writer:
        writer.add_json("run.json", run)
        writer.add_json("coverage.json", evidence.coverage)
        writer.add_events(evidence.events_path)
        writer.add_changes(capture.changes)
        await box.capture(writer.path("state/upper.tar.zst"))
        writer.add_bytes("logs/agent.stdout", finished.stdout)

Reading::

    bundle = Bundle.open(Path("out/run-1"), verify=True)
    print(show(bundle))
"""

from caisson_runner.bundle.activity import Activity, activity
from caisson_runner.bundle.canonical import dumps, escape, loads, unescape
from caisson_runner.bundle.errors import BundleDamaged, BundleError
from caisson_runner.bundle.reader import Bundle, StoredChange
from caisson_runner.bundle.recording import EVENTS
from caisson_runner.bundle.render import as_json, text_of
from caisson_runner.bundle.show import model_of, render, show, summary_json
from caisson_runner.bundle.writer import (
    COVERAGE,
    DIFF,
    MANIFEST,
    RUN,
    UPPER,
    VERDICT,
    BundleWriter,
    change_json,
)

__all__ = [
    "COVERAGE",
    "DIFF",
    "EVENTS",
    "MANIFEST",
    "RUN",
    "UPPER",
    "VERDICT",
    "Activity",
    "Bundle",
    "BundleDamaged",
    "BundleError",
    "BundleWriter",
    "StoredChange",
    "activity",
    "as_json",
    "change_json",
    "dumps",
    "escape",
    "loads",
    "model_of",
    "render",
    "show",
    "summary_json",
    "text_of",
    "unescape",
]
