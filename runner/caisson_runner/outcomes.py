"""Reads the outcomes that statistics are made of from a suite's folder. Only reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from caisson_runner.errors import CaissonError
from caisson_runner.results import Result, read_result
from caisson_runner.statistics.outcomes import Outcome, Outcomes

RUNS: Final = ("runs", "regraded")
"""Folders of a suite's folder in which bundles lie; those that were made by a regrade count for what they regraded."""


class NoResults(CaissonError):
    """The folder holds no results of a suite, or damaged ones."""

    exit_code: ClassVar[int] = 2


def read_outcomes(folder: Path, wanted: Callable[[Result], bool] = lambda _: True) -> Outcomes:
    """The whole bundles of a suite's folder, in the order of its plan; `NoResults` when there are none.

    A regraded bundle is another grading of the state it was made from, where that is here and the checks are the same.
    """
    attempts: dict[str, Outcome] = {}
    checks: dict[str, str] = {}
    regrades: list[tuple[str, str, Result]] = []
    infra = shared = others = 0
    unwanted: set[str] = set()
    for bundle in _bundles(folder):
        result, run = _read(bundle)
        digest = str(run["task"].get("digest") or "")
        derived = run.get("derived_from")
        if isinstance(derived, dict):
            regrades.append((str(derived.get("manifest_sha256")), digest, result))
        elif not wanted(result):
            unwanted |= set() if result.shared else {result.behaviour}
        elif result.shared:
            shared += 1
        elif result.word == "infra":
            infra += 1
        else:
            key = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
            attempts[key], checks[key] = _outcome(result, digest), digest
    if not attempts and not infra and unwanted:
        raise NoResults(f"{folder}: no run in it is of that agent; there are {', '.join(sorted(unwanted))}")
    if not attempts and not infra:
        raise NoResults(f"{folder}: no runs of a suite are in it; name a suite's folder, as after `suite … -o FOLDER`")
    for key, digest, result in regrades:
        if key in attempts and checks[key] == digest and result.word != "infra":
            attempts[key] = replace(attempts[key], regraded=(*attempts[key].regraded, result.truth))
        else:
            others += 1
    return Outcomes(tuple(attempts.values()), infra, shared, others)


def _outcome(result: Result, digest: str) -> Outcome:
    return Outcome(
        run=result.id,
        task=result.task,
        agent=result.behaviour,
        solved=result.word == "pass",
        true=result.truth,
        trusting=result.trusting,
        lie=result.lie,
        state=f"{digest}:{result.state_digest}" if result.state_digest else "",
    )


def _read(bundle: Path) -> tuple[Result, dict[str, Any]]:
    try:
        run = json.loads((bundle / "run.json").read_bytes())
        return read_result(bundle), run
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoResults(
            f"{bundle}: its results cannot be read ({type(error).__name__}); remove or make it anew"
        ) from None


def _bundles(folder: Path) -> Iterator[Path]:
    places = [folder / name for name in RUNS if (folder / name).is_dir()] or [folder]
    order = _plan(folder)
    for place in places:
        whole = [one for one in place.iterdir() if (one / "manifest.json").is_file()] if place.is_dir() else []
        yield from sorted(
            (one for one in whole if not one.name.endswith(".partial")),
            key=lambda one: (order.get(one.name, len(order)), one.name),
        )


def _plan(folder: Path) -> dict[str, int]:
    """Where in the plan a run is."""
    try:
        return {str(run["id"]): at for at, run in enumerate(json.loads((folder / "plan.json").read_bytes())["runs"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
