"""What the benchmarks share: percentiles, the machine in one line, and a table."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie; nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def machine() -> str:
    """Cores, memory, kernel: what a figure must be read with."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain aligned table."""
    lines = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    print(f"\n{title}")
    for number, line in enumerate(lines):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def others_watching() -> str:
    """A line that says so when programs of somebody else are on this machine's system calls already, or nothing."""
    tool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if tool is None:
        return ""
    shown = subprocess.run([tool, "link", "show"], capture_output=True, text=True, check=False).stdout
    count = shown.count("tp 'sys_enter'")
    if not count:
        return ""
    return f"{count} other program(s) watch every system call of this machine: 'no programs' and 'bare' have these too"
