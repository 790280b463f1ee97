"""Results as they are read back from bundles: what tables and resumed suites are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_SCHEMA = "caisson.run/v1"


@dataclass(frozen=True, slots=True)
class SharedSlot:
    """One place in a shared box: did the visible check pass there?"""

    slot: int
    behaviour: str
    is_poison: bool
    passed: bool


@dataclass(frozen=True, slots=True)
class FoundFinding:
    """A finding as tables need it."""

    rule: str
    severity: str
    seqs: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    gate: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One run's outcome. `None` in a verdict means that there was no such check, or none could be made."""

    id: str
    task: str
    behaviour: str
    is_cheat: bool
    word: str
    trusting: bool | None
    ground_truth: bool | None
    held_out: bool | None
    lie: bool
    state_digest: str
    seed: int | None
    wall_s: float
    witness: str
    detail: str
    bundle: Path
    shared: tuple[SharedSlot, ...] = ()
    findings: tuple[FoundFinding, ...] = ()

    @property
    def truth(self) -> bool:
        """Every true check that the task has passed (the verdict may still be void)."""
        return self.word in ("pass", "void")


def _passed(check: Mapping[str, Any] | None) -> bool | None:
    return None if check is None else check.get("passed")


def read_result(bundle: Path) -> Result:
    """Read a whole bundle's `run.json` and `verdict.json`. Raises OSError, ValueError or KeyError on a damaged one."""
    try:
        return _result(bundle)
    except (TypeError, AttributeError, RecursionError) as error:  # JSON of another shape: a stranger may have made it
        raise ValueError(f"{bundle}: run.json or verdict.json is of another shape ({type(error).__name__})") from None


def _result(bundle: Path) -> Result:
    run: dict[str, Any] = json.loads((bundle / "run.json").read_bytes())
    verdict: dict[str, Any] = json.loads((bundle / "verdict.json").read_bytes())
    if run.get("schema") != RUN_SCHEMA:
        raise ValueError(f"{bundle}: run.json is not {RUN_SCHEMA}")
    return Result(
        id=run["id"],
        task=run["task"]["id"],
        behaviour=run["agent"]["name"],
        is_cheat=run["agent"].get("behaviour_kind") == "cheat",
        word=verdict["word"],
        trusting=_passed(verdict.get("trusting")),
        ground_truth=_passed(verdict.get("ground_truth")),
        held_out=_passed(verdict.get("held_out")),
        lie=bool(verdict.get("lie")),
        state_digest=run.get("state", {}).get("digest", ""),
        seed=run.get("seed"),
        wall_s=run["wall_s"],
        witness=run["witness"]["name"],
        detail=verdict.get("detail", ""),
        bundle=bundle,
        shared=tuple(SharedSlot(**slot) for slot in run.get("shared_slots", ())),
        findings=tuple(
            FoundFinding(
                one["rule"], one["severity"], tuple(one["seqs"]), tuple(one["paths"]), tuple(one.get("gate", ()))
            )
            for one in verdict.get("findings", ())
        ),
    )
