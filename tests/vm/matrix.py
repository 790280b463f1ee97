"""Writes what was seen on each kernel into a page: ``python tests/vm/matrix.py RESULTS.json… docs/witness.md``.

The page keeps everything outside of the two marker lines. No cell is typed by hand: what a kernel showed is what tests
found there, and what was not shown has the reason that the test gave.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tracerd"))
import seen

BEGIN = "<!-- kernels: begin (made by tests/vm/matrix.py from the results of make test-kernels) -->"
END = "<!-- kernels: end -->"
HEAD = "# What the witness sees, on which kernel\n\n"
TIERS = ("tracepoint", "trampoline")
WORDS = ("passed", "failed", "skipped")
NONE = "–"
WORKS = re.compile(r"\w+ on (\w+) fires")
"""What ``tracerd doctor`` says of a hook that works."""


@dataclass
class Kernel:
    """Everything that was found on one kernel, of all parts together."""

    name: str
    release: str
    tests: dict[str, str] = field(default_factory=dict)
    seen: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """Tier -> event -> tests."""
    hooks: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """Hook -> what the record has not where that hook is not."""
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """``6.12``; a kernel that is not Debian's is the machine's own."""
        number = ".".join(self.release.split(".")[:2])
        return f"{number} (own)" if self.name == "here" else number

    @property
    def tiers(self) -> list[str]:
        return [tier for tier in TIERS if tier in self.seen]


def gathered(results: Iterable[dict[str, Any]]) -> list[Kernel]:
    """One for each kernel, from the oldest to the newest."""
    found: dict[str, Kernel] = {}
    for one in results:
        kernel = found.setdefault(one["kernel"], Kernel(one["kernel"], one["release"]))
        kernel.tests.update(one["tests"])
        for tier, events in one["seen"].get("seen", {}).items():
            for event, tests in events.items():
                kernel.seen[tier][event].update(tests)
        for finding in one["seen"].get("doctor", []):
            if finding["name"].startswith("hook "):
                hook = finding["name"].removeprefix("hook ")
                kernel.hooks[hook] = finding["detail"]
                kernel.lost[hook] = finding.get("remedy", "").partition("without it ")[2]
        if one["problem"]:
            kernel.problems.append(f"{one.get('part', '')}: {one['problem'].splitlines()[0]}")
    return sorted(found.values(), key=lambda kernel: [int(word) for word in re.findall(r"\d+", kernel.release)[:2]])


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    line = ["---"] + [":-:"] * (len(head) - 1)
    return ["| " + " | ".join(row) + " |" for row in [head, line, *rows]]


def tests_table(kernels: list[Kernel]) -> list[str]:
    """What the tests said."""
    rows = []
    for one in kernels:
        counts = [str(sum(outcome.startswith(word) for outcome in one.tests.values())) for word in WORDS]
        works = sum(WORKS.fullmatch(detail) is not None for detail in one.hooks.values())
        hooks = f"{works} of {len(one.hooks)}" if one.hooks else NONE
        rows.append([one.label, f"`{one.release}`", *counts, hooks, "; ".join(one.problems)])
    return grid(["kernel", "release", *WORDS, "hooks that fire", "no answer"], rows)


def columns(kernels: list[Kernel]) -> list[tuple[Kernel, str]]:
    return [(kernel, tier) for kernel in kernels for tier in kernel.tiers]


def column_heads(kernels: list[Kernel]) -> list[str]:
    return [f"{kernel.label} {tier}" for kernel, tier in columns(kernels)]


def events_table(kernels: list[Kernel]) -> list[str]:
    """Kinds of events against kernels and tiers: in how many tests records of it came out."""
    found = columns(kernels)
    names = sorted({name for kernel, tier in found for name in kernel.seen[tier]})
    rows = [
        [name, *(str(len(kernel.seen[tier][name])) if name in kernel.seen[tier] else NONE for kernel, tier in found)]
        for name in names
    ]
    return grid(["event", *column_heads(kernels)], rows)


def nowhere(kernels: list[Kernel]) -> str:
    """What the layout of records declares and no test of any kernel brought out."""
    found = {name for kernel in kernels for events in kernel.seen.values() for name in events}
    missing = [name for name in seen.declared() if not any(f"{one},".startswith(f"{name},") for one in found)]
    told = "; ".join(missing) if missing else "none"
    return f"Kinds of events that are declared and that no test brought about on any of these kernels: {told}."


def hooks_table(kernels: list[Kernel]) -> list[str]:
    """Hooks of the trampoline tier against kernels, as ``tracerd doctor`` found them."""
    told = [kernel for kernel in kernels if kernel.hooks]
    names = list(dict.fromkeys(name for kernel in told for name in kernel.hooks))
    rows = [[name, *(plain(kernel.hooks.get(name, NONE)) for kernel in told)] for name in names]
    return grid(["hook", *(kernel.label for kernel in told)], rows)


def without_hooks(kernels: list[Kernel]) -> list[str]:
    """What is lost where a hook does not fire, each with the kernels."""
    lines = []
    for hook, lost in {hook: lost for kernel in kernels for hook, lost in kernel.lost.items() if lost}.items():
        where = [one.label for one in kernels if hook in one.hooks and not WORKS.fullmatch(one.hooks[hook])]
        if where:
            lines.append(f"* without `{hook}` ({', '.join(where)}): {lost}")
    return lines


def plain(detail: str) -> str:
    """``fexit on do_filp_open fires`` is the function, anything else the reason."""
    found = WORKS.fullmatch(detail)
    return f"`{found[1]}`" if found else detail.rpartition(": ")[2]


def split(test: str) -> tuple[str, str]:
    """(promise, tier) of ``module::test_name[tier-parameters]``; the daemon's own choice of a tier is ''."""
    name, _, parameters = test.partition("::")[2].partition("[")
    tier = next((tier for tier in TIERS if parameters.startswith(tier)), "")
    return name.removeprefix("test_").replace("_", " "), tier


def worst(outcomes: list[str]) -> str:
    """One word for a promise that was tried with several parameters."""
    for word in ("failed", "skipped", "passed"):
        if any(outcome.startswith(word) for outcome in outcomes):
            return word
    return ""


def promises_table(kernels: list[Kernel], tiers: bool) -> list[str]:
    """Promises against kernels: those of the record under each tier, or those of the daemon under its own choice."""
    across = columns(kernels) if tiers else [(kernel, "") for kernel in kernels]
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for kernel in kernels:
        for test, outcome in kernel.tests.items():
            promise, tier = split(test)
            if bool(tier) == tiers:
                found.setdefault(promise, {}).setdefault((kernel.name, tier), []).append(outcome)
    signs = {"passed": "yes", "failed": "**no**", "skipped": "skipped", "": NONE}
    rows = [
        [promise, *(signs[worst(outcomes.get((kernel.name, tier), []))] for kernel, tier in across)]
        for promise, outcomes in sorted(found.items())
        if any(name != "here" for name, _ in outcomes)
    ]
    heads = column_heads(kernels) if tiers else [kernel.label for kernel in kernels]
    return grid(["promise", *heads], rows)


def own_only(kernels: list[Kernel]) -> str:
    """Promises that only this machine's kernel was asked for: minutes are dear in an emulated one."""
    elsewhere = {split(test)[0] for kernel in kernels if kernel.name != "here" for test in kernel.tests}
    outcomes: dict[str, list[str]] = {}
    for kernel in kernels:
        for test, outcome in kernel.tests.items() if kernel.name == "here" else ():
            if split(test)[0] not in elsewhere:
                outcomes.setdefault(split(test)[0], []).append(outcome)
    counts = [f"{sum(worst(found) == word for found in outcomes.values())} {word}" for word in WORDS]
    return f"Promises that only the machine's own kernel was asked for: {len(outcomes)} ({', '.join(counts)})."


def reasons(kernels: list[Kernel]) -> list[str]:
    """Every reason for a skip or a failure, with how often and where."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for kernel in kernels:
        for test, outcome in sorted(kernel.tests.items()):
            if outcome != "passed":
                found.setdefault((kernel.label, outcome), {}).setdefault(outcome, []).append(test)
    lines = []
    for (label, outcome), tests in found.items():
        names = [name.partition("::")[2] for name in tests[outcome]]
        shown = f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        lines.append(f"* {label}: {outcome} ({shown})")
    return lines


def section(results: list[dict[str, Any]]) -> str:
    """The generated part."""
    kernels = gathered(results)
    parts = [
        ["## Kernels", "", *tests_table(kernels)],
        ["", "## Events", "", "In how many tests records of a kind came out, by kernel and tier (– : in none):", ""],
        events_table(kernels),
        ["", nowhere(kernels)],
        [
            "",
            "## Hooks of the trampoline tier",
            "",
            "Each tried with a real event: the function it sits on, or why not.",
            "",
        ],
        hooks_table(kernels),
        ["", *without_hooks(kernels)],
        ["", "## Promises of the record", "", "Each a test of its own; – : not asked for there.", ""],
        promises_table(kernels, True),
        ["", "## Promises of the daemon", "", "Under the tier that it chose; – : not asked for there.", ""],
        promises_table(kernels, False),
        ["", own_only(kernels)],
        ["", "## Not passed", "", *(reasons(kernels) or ["nothing"])],
    ]
    return "\n".join(line for part in parts for line in part)


def rewritten(page: str, part: str) -> str:
    """The page with the generated part exchanged, or appended when it has none."""
    if BEGIN in page and END in page:
        head, _, rest = page.partition(BEGIN)
        return f"{head}{BEGIN}\n\n{part}\n\n{END}{rest.partition(END)[2]}"
    return f"{page.rstrip() + chr(10) + chr(10) if page else HEAD}{BEGIN}\n\n{part}\n\n{END}\n"


def main() -> int:
    *sources, target = map(Path, sys.argv[1:])
    results = [one for source in sources for one in json.loads(source.read_text())]
    before = target.read_text() if target.exists() else ""
    target.write_text(rewritten(before, section(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
