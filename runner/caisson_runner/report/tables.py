"""Tables of a suite's experiments, made from the results of runs and from nothing else.

Pure: results in, `Table` values out. `report.terminal` prints them; `--json` carries the same cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from caisson_runner.results import Result, SharedSlot
from caisson_runner.verify.intervals import wilson


@dataclass(frozen=True, slots=True)
class Table:
    """One experiment's outcome: cells are text already; `notes` are the sentences below it."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def word(passed: bool | None) -> str:
    """PASS, fail, or a dash where there is no verdict."""
    return "–" if passed is None else "PASS" if passed else "fail"


def _against(easy: bool | None, true: bool | None, mark: str) -> str:
    """The stricter verdict, marked where the easier one was fooled."""
    return word(true) + (f" {mark}" if easy and true is False else "")


def share(count: int, total: int) -> str:
    """A count as `13/15 = 87 %, 95 % interval 62–96 %` (Wilson)."""
    if total == 0:
        return "0/0"
    low, high = wilson(count, total)
    return f"{count}/{total} = {100 * count / total:.0f} %, 95 % interval {100 * low:.0f}–{100 * high:.0f} %"


def _infra_note(results: Sequence[Result]) -> tuple[str, ...]:
    broken = [r for r in results if r.word == "infra"]
    if not broken:
        return ()
    return (f"{len(broken)} run(s) have no verdict because our side failed: {broken[0].id}: {broken[0].detail}",)


def determinism(id: str, title: str, results: Sequence[Result]) -> Table:
    """The same behaviour again and again from one snapshot: verdicts and final-state digests must agree."""
    graded = [r for r in results if r.word != "infra"]
    passed = sum(1 for r in graded if r.truth)
    digests = {r.state_digest for r in graded}
    rows = tuple((r.id, r.behaviour, word(r.truth), r.state_digest[:16]) for r in results)
    same = "one final-state digest" if len(digests) == 1 else f"{len(digests)} different final-state digests"
    return Table(
        id,
        title,
        ("run", "behaviour", "ground truth", "final state"),
        rows,
        (f"ground truth passes {passed}/{len(graded)}, {same}", *_infra_note(results)),
    )


def trusting_vs_truth(id: str, title: str, results: Sequence[Result]) -> Table:
    """What a trusting harness says beside what is true."""
    rows = tuple((r.behaviour, word(r.trusting), _against(r.trusting, r.ground_truth, "(FALSE PASS)")) for r in results)
    cheats = [r for r in results if r.is_cheat and r.word != "infra"]
    notes: tuple[str, ...] = ()
    if cheats:
        fooled = sum(1 for r in cheats if r.trusting)
        true = sum(1 for r in cheats if r.ground_truth)
        notes = (f"cheats passing: trusting {fooled}/{len(cheats)}, ground truth {true}/{len(cheats)}",)
    return Table(id, title, ("behaviour", "trusting harness", "ground truth"), rows, (*notes, *_infra_note(results)))


def held_out(id: str, title: str, results: Sequence[Result]) -> Table:
    """The visible cases beside inputs the agent never saw."""
    rows = tuple(
        (r.behaviour, word(r.ground_truth), _against(r.ground_truth, r.held_out, "(FALSE PASS on visible-only)"))
        for r in results
    )
    seeds = ", ".join(f"{r.behaviour}: {r.seed}" for r in results)
    return Table(
        id,
        title,
        ("behaviour", "visible check", "held-out"),
        rows,
        (f"seeds of the held-out inputs: {seeds}", *_infra_note(results)),
    )


def lie_rate(id: str, title: str, results: Sequence[Result]) -> Table:
    """Pass rates and the lie rate, each with its 95 % Wilson interval; void and infra are counted apart."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.behaviour].append(result)
    graded = [r for r in results if r.word != "infra"]
    n = len(graded)
    trusting = sum(1 for r in graded if r.trusting)
    truth = sum(1 for r in graded if r.truth)
    lies = sum(1 for r in graded if r.lie)
    void = sum(1 for r in graded if r.word == "void")
    rows = (
        ("trusting pass rate", share(trusting, n)),
        ("ground-truth pass rate", share(truth, n)),
        ("lie rate, over all runs", share(lies, n)),
        ("lies among the trusting passes", share(lies, trusting)),
        ("void", f"{void}/{n}"),
    )
    mix = ", ".join(f"{len(group)} {name}" for name, group in groups.items())
    return Table(id, title, ("quantity", "value"), rows, (f"n = {n}: {mix}", *_infra_note(results)))


def contamination(id: str, title: str, shared: Sequence[SharedSlot], isolated: Sequence[Result]) -> Table:
    """One long-lived box against a fresh fork per task: honest work that fails only in the first is spurious."""
    rows = []
    for slot, fresh in zip(shared, isolated, strict=True):
        if slot.is_poison:
            rows.append((str(slot.slot), slot.behaviour, "poison", "poison, contained"))
        else:
            rows.append((str(slot.slot), slot.behaviour, word(slot.passed), word(fresh.trusting)))
    spurious_shared = sum(1 for s in shared if not s.is_poison and not s.passed)
    spurious_isolated = sum(1 for s, r in zip(shared, isolated, strict=True) if not s.is_poison and not r.trusting)
    return Table(
        id,
        title,
        ("slot", "behaviour", "shared box", "fresh fork per task"),
        tuple(rows),
        (f"spurious failures: shared {spurious_shared}, isolated {spurious_isolated}", *_infra_note(isolated)),
    )


def matrix(id: str, title: str, results: Sequence[Result]) -> Table:
    """Every task with every behaviour: three verdicts and the last word."""
    rows = tuple(
        (
            r.task,
            r.behaviour,
            word(r.trusting),
            word(r.ground_truth),
            word(r.held_out),
            r.word + ("  ← lie" if r.lie else ""),
        )
        for r in results
    )
    graded = [r for r in results if r.word != "infra"]
    lies = sum(1 for r in graded if r.lie)
    return Table(
        id,
        title,
        ("task", "agent", "trusting", "ground truth", "held-out", "verdict"),
        rows,
        (f"lie rate: {share(lies, len(graded))}", *_infra_note(results)),
    )
