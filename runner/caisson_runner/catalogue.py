"""What became of a catalogue's scenarios: the matrix, and where it differs from what each row expects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caisson_runner.report.tables import Table, word
from caisson_runner.results import FoundFinding, Result
from caisson_runner.tasks import Experiment, Scenario

AFTER = "after:"
"""Before a scenario's id: the agent that works after it, alone in a fresh fork."""
MAX_SHOWN = 3  # findings one row names


def row_ids(scenario: Scenario) -> tuple[str, str, str]:
    """The ids of its runs: in a fork of its own, in a shared box before `later`, and `later` in a fresh fork."""
    name = f"{scenario.group}-{scenario.id}"
    return name, f"{name}-shared", f"{name}-after"


def differences(scenario: Scenario, runs: Mapping[str, Result]) -> list[str]:
    """Where a row's runs are not as expected, one sentence each; empty when all is."""
    own, shared, after = (runs.get(one) for one in row_ids(scenario))
    lines: list[str] = []
    if own is not None:
        said = "pass" if own.trusting else "fail"
        if scenario.trusting and said != scenario.trusting:
            lines.append(f"the trusting harness says {said}, expected {scenario.trusting}")
        if own.word != scenario.verdict:
            lines.append(f"the verdict is {own.word}, expected {scenario.verdict} ({own.detail})")
        made = {finding.rule: finding for finding in own.findings}
        wanted = (*scenario.findings, *(scenario.ebpf if own.witness.startswith("ebpf") else ()))
        lines += [f"no finding {rule}" for rule in wanted if rule not in made]
        if scenario.kind == "honest":
            loud = [f.rule for f in own.findings if f.severity != "info" and f.rule not in wanted]
            lines += [f"honest work raises {rule}" for rule in loud]
        pointing = [rule for rule in scenario.ebpf if rule in made and not made[rule].seqs]
        lines += [f"finding {rule} points at no event" for rule in pointing if own.witness.startswith("ebpf")]
    if shared is not None and shared.shared:
        last = "pass" if shared.shared[-1].passed else "fail"
        if last != scenario.shared:
            lines.append(f"{scenario.later} after it in one box: {last}, expected {scenario.shared}")
    if after is not None and after.word != scenario.after:
        lines.append(f"{scenario.later} in a fresh fork: {after.word}, expected {scenario.after} ({after.detail})")
    return lines


def _trusting(scenario: Scenario, own: Result, shared: Result | None) -> str:
    if shared is None or not shared.shared:
        return word(own.trusting)
    return f"then {word(shared.shared[-1].passed)}"


def _true(own: Result, after: Result | None) -> str:
    return own.word if after is None else f"then {after.word}"


def _found_by(scenario: Scenario, own: Result) -> str:
    parts = []
    if own.word == "fail":
        parts.append("ground truth" if own.ground_truth is False else "held-out inputs")
    parts += [finding.rule for finding in _telling(scenario, own)]
    return ", ".join(parts) or "–"


def _telling(scenario: Scenario, own: Result) -> list[FoundFinding]:
    """The findings a row shows: what it is expected to raise first, then what else is more than a remark."""
    wanted = (*scenario.findings, *scenario.ebpf)
    found = [finding for finding in own.findings if finding.severity != "info" or finding.rule in wanted]
    return sorted(found, key=lambda finding: finding.rule not in wanted)[:MAX_SHOWN]


def _evidence(scenario: Scenario, own: Result) -> str:
    parts = []
    for finding in _telling(scenario, own):
        if finding.gate:
            parts.append("gate " + " ".join(f"#{seq}" for seq in finding.gate[:2]))
        elif finding.seqs:
            more = f"+{len(finding.seqs) - 2}" if len(finding.seqs) > 2 else ""
            parts.append(" ".join(f"#{seq}" for seq in finding.seqs[:2]) + more)
        elif finding.paths:
            parts.append(finding.paths[0])
    return "; ".join(parts) or (f"verdict.json: {own.detail[:60]}" if own.word in ("fail", "infra") else "–")


def matrix(experiment: Experiment, runs: Mapping[str, Result]) -> Table:
    """One row for each scenario that was run: trusting, true, found by, evidence."""
    rows, notes, honest, lies, traced = [], [], 0, 0, []
    for scenario in experiment.scenarios:
        own, shared, after = (runs.get(one) for one in row_ids(scenario))
        if own is None:
            continue
        mark = "" if not differences(scenario, runs) else "  ← not as expected"
        rows.append(
            (
                f"{scenario.group} {scenario.id}",
                _trusting(scenario, own, shared),
                _true(own, after) + mark,
                _found_by(scenario, own),
                _evidence(scenario, own),
            )
        )
        honest += scenario.kind == "honest"
        lies += own.lie
        if scenario.ebpf and not own.witness.startswith("ebpf"):
            traced.append(scenario.id)
    notes.append(f"{len(rows)} scenarios, {honest} of them honest controls; {lies} lies of the trusting harness")
    if traced:
        notes.append(
            f"this witness cannot support every finding of {len(traced)} scenarios (eBPF can): {', '.join(traced)}"
        )
    missing = [(s.id, s.missing) for s in experiment.scenarios if s.missing]
    notes += [f"not run here: {name} (no {', '.join(what)})" for name, what in missing]
    columns = ("scenario", "trusting", "true", "found by", "evidence")
    return Table(experiment.id, experiment.title, columns, tuple(rows), tuple(notes))


def surprises(experiment: Experiment, runs: Mapping[str, Result]) -> list[str]:
    """Every row that differs from its expectation."""
    return [
        f"{scenario.group}-{scenario.id}: {line}"
        for scenario in experiment.scenarios
        for line in differences(scenario, runs)
    ]


def expressible(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Those this machine can run."""
    return [scenario for scenario in scenarios if not scenario.missing]
