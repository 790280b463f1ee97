"""What a page needs to know of one run: read from a bundle that was verified, every part of it a stranger's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from caisson_runner.bundle import attached, network
from caisson_runner.bundle.activity import Activity
from caisson_runner.bundle.check import Checked, verify
from caisson_runner.bundle.keys import known
from caisson_runner.bundle.reader import Bundle
from caisson_runner.bundle.show import model_of
from caisson_runner.export.scene import Scene
from caisson_runner.report.html_events import MAX_EVENTS, Told, tell
from caisson_runner.report.html_tags import Html, tag

LOG: Final = 4096
"""Bytes of what an agent printed that a page shows."""

WORDS: Final = {
    "pass": "Pass", "fail": "Fail", "void": "Void", "infra": "No verdict",
    "": "Record only",
}  # fmt: skip
CHECKS: Final = (
    ("trusting", "Trusting check", "what a naive harness would believe, in the agent’s own box"),
    ("ground_truth", "Ground truth", "the real final state, in a clean fork that the agent was never in"),
    ("held_out", "Held-out inputs", "inputs drawn anew, which the agent never saw"),
)


@dataclass(frozen=True, slots=True)
class RunPage:
    """Everything of one bundle that a page needs. ``number`` tells runs of one page apart."""

    number: int
    root: Path
    scene: Scene
    checked: Checked
    model: Activity
    told: Told
    asked: Sequence[network.Asked]
    logs: Mapping[str, bytes]
    before: Sequence[str] = ()
    """About what the record does not hold, when it began in the middle."""

    @property
    def word(self) -> str:
        """One of `WORDS`; empty for a record of something that nobody graded, as ``caisson-run attach`` makes them."""
        word = str(self.scene.verdict.get("word") or "")
        return word if word in WORDS and (word or not self.scene.verdict) else "infra"

    @property
    def lie(self) -> bool:
        return self.scene.verdict.get("lie") is True

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        return tables_of(self.scene.verdict.get("findings"))

    def passed(self, check: str) -> bool | None:
        """What one of `CHECKS` said; None where there was none."""
        value = table_of(self.scene.verdict.get(check)).get("passed")
        return value if isinstance(value, bool) else None

    def event(self, seq: int) -> Html:
        """A link to an event of the record."""
        return tag("a", f"event {seq}", href=f"#e-{self.number}-{seq}", class_="ev")


def read_run(root: Path, number: int = 0, limit: int = MAX_EVENTS) -> RunPage:
    """Verifies a bundle and reads it. Raises `BundleDamaged` when it is not what was signed."""
    checked = verify(root, known())
    bundle = Bundle.open(root)
    scene = Scene.of(bundle)
    model = model_of(bundle)
    pointed = {seq for one in tables_of(scene.verdict.get("findings")) for seq in integers(one.get("seqs"))}
    told = tell(bundle, scene, pointed, {one.path for one in model.changes}, limit)
    logs = {}
    for name in ("logs/agent.stdout", "logs/agent.stderr"):
        if bundle.has(name):
            with (root / name).open("rb") as file:
                logs[name] = file.read(LOG)
    before: list[str] = []
    if bundle.has(attached.NAME):
        before += attached.lines_of(table_of(bundle.json(attached.NAME)), everything=False)
    return RunPage(number, root, scene, checked, model, told, network.asked_of(root), logs, before)


def table_of(value: object) -> Mapping[str, Any]:
    """A table of a stranger's JSON, or an empty one."""
    return value if isinstance(value, dict) else {}


def items_of(value: object) -> list[Any]:
    """A list of a stranger's JSON, or an empty one."""
    return value if isinstance(value, list) else []


def tables_of(value: object) -> list[Mapping[str, Any]]:
    """The tables in a stranger's list."""
    return [one for one in items_of(value) if isinstance(one, dict)]


def integers(value: object) -> list[int]:
    """The whole numbers of a stranger's list."""
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


def many(count: int, one: str, several: str = "") -> str:
    """``1 event``, ``2,000 events``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def moment(value: object) -> str:
    """An ISO 8601 time as people write it; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(str(value)).astimezone(UTC):%d %b %Y, %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return str(value or "")
