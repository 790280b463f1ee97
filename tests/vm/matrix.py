"""Writes what was seen on each kernel into a page: ``python tests/vm/matrix.py RESULTS.json docs/witness.md``.

The page keeps everything outside of the two marker lines. No cell is typed by hand: it is the number of tests in
which records of that kind came out of that kernel under that tier.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN = "<!-- kernels: begin (made by tests/vm/matrix.py from the results of make test-kernels) -->"
END = "<!-- kernels: end -->"
HEAD = "# What the witness sees, on which kernel\n\n"


def columns(results: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, list[str]]]]:
    """(kernel, tier, tests by event) of every kernel and tier that gave records."""
    found = []
    for one in results:
        for tier, events in one["seen"].get("seen", {}).items():
            if tier in ("tracepoint", "trampoline"):
                found.append((one["kernel"], tier, events))
    return found


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    line = ["---"] + [":-:"] * (len(head) - 1)
    return ["| " + " | ".join(row) + " |" for row in [head, line, *rows]]


def events_table(results: list[dict[str, Any]]) -> list[str]:
    """Kinds of events against kernels and tiers."""
    found = columns(results)
    names = sorted({name for _, _, events in found for name in events})
    rows = [
        [name, *(str(len(events.get(name, ()))) if name in events else "–" for _, _, events in found)] for name in names
    ]
    return grid(["event", *(f"{kernel} {tier}" for kernel, tier, _ in found)], rows)


def hooks_table(results: list[dict[str, Any]]) -> list[str]:
    """Hooks of the trampoline tier against kernels, as ``tracerd doctor`` found them."""
    hooks: dict[str, dict[str, str]] = {}
    kernels = [one["kernel"] for one in results if "doctor" in one["seen"]]
    for one in results:
        for finding in one["seen"].get("doctor", []):
            if finding["name"].startswith("hook "):
                hooks.setdefault(finding["name"].removeprefix("hook "), {})[one["kernel"]] = finding["detail"]
    rows = [[name, *(told.get(kernel, "–") for kernel in kernels)] for name, told in hooks.items()]
    return grid(["hook", *kernels], rows)


def tests_table(results: list[dict[str, Any]]) -> list[str]:
    """What the tests said."""
    rows = []
    for one in results:
        counts = [sum(outcome.startswith(word) for outcome in one["tests"].values()) for word in WORDS]
        rows.append(
            [one["kernel"], one["release"], *map(str, counts), one["problem"].splitlines()[0] if one["problem"] else ""]
        )
    return grid(["kernel", "release", *WORDS, "problem"], rows)


WORDS = ("passed", "failed", "skipped")


def skipped(results: list[dict[str, Any]]) -> list[str]:
    """Every test that did not run or failed, with its reason."""
    return [
        f"* {one['kernel']}: `{test}`: {outcome}"
        for one in results
        for test, outcome in sorted(one["tests"].items())
        if outcome != "passed"
    ]


def section(results: list[dict[str, Any]]) -> str:
    """The generated part."""
    parts = [
        ["## Kernels", "", "Debian's own kernels, each booted in a virtual machine; tests passed there:", ""],
        tests_table(results),
        ["", "Tests in which records of a kind came out, by kernel and tier (– : in none):", ""],
        events_table(results),
        ["", "Hooks of the trampoline tier, tried with a real event:", ""],
        hooks_table(results),
        ["", "Not passed:", "", *(skipped(results) or ["nothing"])],
    ]
    return "\n".join(line for part in parts for line in part)


def rewritten(page: str, part: str) -> str:
    """The page with the generated part exchanged, or appended when it has none."""
    if BEGIN in page and END in page:
        head, _, rest = page.partition(BEGIN)
        return f"{head}{BEGIN}\n\n{part}\n\n{END}{rest.partition(END)[2]}"
    return f"{page.rstrip() + chr(10) + chr(10) if page else HEAD}{BEGIN}\n\n{part}\n\n{END}\n"


def main() -> int:
    results, page = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    before = page.read_text() if page.exists() else ""
    page.write_text(rewritten(before, section(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
