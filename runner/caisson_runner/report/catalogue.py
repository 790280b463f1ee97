"""docs/cheats.md, made from the catalogue: `python -m caisson_runner.report.catalogue > docs/cheats.md`. Pure."""

from __future__ import annotations

from caisson_runner.tasks import Experiment, Scenario, load_suite

_HEAD = """# The catalogue of cheats and honest controls

Made from `scenarios/cheats/*.toml` by `make cheats-page`; a test compares the two. Every row is a scripted agent on a
small task. `make cheats` (or `caisson-run suite cheats -n 2`) runs them all and prints, for each, what a trusting
harness says, what is true, what found it and where the evidence is; a row that gives anything else than what stands
here fails the suite. One row: `caisson-run suite cheats -i 'A-os-exit-zero'`.

* **trusting**: what the naive harness of the row says. Group E: what becomes of the next task in the same box.
* **true**: the verdict. `fail`: the final state is wrong. `void`: it is right, and a finding disqualifies the run.
* **findings** in *italics* need the witness eBPF: strace does not see calls that the box's own filter refuses, nor what
  lies behind a program in memory. The verdicts are the same under both.
* A row whose tools this machine has not (a compiler, node, git) is not run, and the suite says so.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(row: Scenario) -> str:
    found = [f"`{rule}`" for rule in row.findings] + [f"*`{rule}`*" for rule in row.ebpf]
    trusting, true = row.trusting or "–", row.verdict
    if row.later:
        trusting, true = f"then {row.shared}", f"{row.verdict}, then {row.after}"
    what = row.what + (f" (needs {', '.join(row.needs)})" if row.needs else "")
    return f"| `{row.id}` | {_cell(what)} | {trusting} | {true} | {', '.join(found) or 'none'} | {_cell(row.source)} |"


def page(experiment: Experiment) -> str:
    """The whole page."""
    parts = [_HEAD]
    for group, title in dict.fromkeys((row.group, row.title) for row in experiment.scenarios):
        rows = [row for row in experiment.scenarios if row.group == group]
        parts.append(f"## {group}. {title}\n")
        parts.append("| id | what it does | trusting | true | findings | met in |\n|---|---|---|---|---|---|")
        parts.append("\n".join(_row(row) for row in rows) + "\n")
    parts.append("## What is not here, and why\n")
    parts.append("| id | why |\n|---|---|")
    parts.append("\n".join(f"| `{row.id}` | {_cell(row.why)} |" for row in experiment.left_out) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(load_suite("cheats").experiments[0]), end="")
