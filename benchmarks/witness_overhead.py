"""What watching costs an exec- and open-heavy script in a box: no witness, eBPF, strace, in one go.

The script runs /bin/true 300 times and opens a file 20 000 times. Rounds alternate between the witnesses. Aim: what
eBPF adds is at most a tenth of what strace adds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec
from caisson_runner.witness import Limits, Witness, choose
from caisson_runner.witness.errors import WitnessUnavailable
from timing import machine, median, table

SCRIPTS = {
    "300 × exec /bin/true": "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done",
    "20 000 × open": "exec python3 -S -c 'import os\nfor _ in range(20000): os.close(os.open(\"/etc/passwd\", 0))'",
}


async def once(witness: Witness, script: str, number: int) -> tuple[float, int, int]:
    """(seconds in the box, records, dropped)."""
    async with LocalEngine() as engine:
        snapshot = await engine.snapshot(SnapshotSpec(base="host"))
        async with witness.watch(f"bench-{witness.name}-{number}", Limits()) as watch:
            async with engine.fork(snapshot, cgroup=watch.cgroup) as box:
                command = Command(("/bin/sh", "-c", script), cwd="/")
                finished = await (await box.start(command, admit=watch.admit, wrap=watch.wrap)).wait()
                assert finished.ok, finished
                await box.kill()
            evidence = await watch.seal()
            counts = evidence.coverage.get("counts", {})
            dropped = sum(int(c.get("dropped_ring", 0)) + int(c.get("dropped_map", 0)) for c in counts.values())
            return finished.wall_s, sum(1 for _ in evidence.records()), dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    witnesses: list[Witness] = []
    for name in ("none", "ebpf", "strace"):
        try:
            witnesses.append(choose(name))
        except WitnessUnavailable as error:
            print(f"{name}: left out: {error}")
    print(f"{machine()}; {rounds} rounds, medians")
    rows = []
    for title, script in SCRIPTS.items():
        times: dict[str, list[float]] = {w.name: [] for w in witnesses}
        seen: dict[str, tuple[int, int]] = {}
        for number in range(rounds):
            for witness in witnesses:
                took, records, dropped = asyncio.run(once(witness, script, number))
                times[witness.name].append(took)
                seen[witness.name] = records, dropped
        base = median(times["none"])
        strace_added = median(times["strace"]) - base if "strace" in times else 0.0
        for name, values in times.items():
            added = median(values) - base
            of_strace = f"{added / strace_added:.2f}" if name == "ebpf" and strace_added > 0 else ""
            rows.append(
                (title, name, f"{1000 * median(values):.0f}", f"{1000 * added:+.0f}", f"{median(values) / base:.2f}",
                 of_strace, str(seen[name][0]), str(seen[name][1]))
            )  # fmt: skip
    table(
        "Cost of watching (aim: eBPF adds at most 0.10 of what strace adds)",
        ("script", "witness", "ms", "added ms", "× none", "of strace's", "records", "dropped"),
        rows,
    )


if __name__ == "__main__":
    main()
