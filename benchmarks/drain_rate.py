#!/usr/bin/env python3
"""How fast one core moves records from a ring to a journal: the daemon's own code, on a ring of the kernel's.

A box fills a ring while nobody drains; then the drain alone is timed, by CPU time and by the clock. Records are real
ones, of opens. Aim: at least 2 million a second on one core. Needs root; starts a daemon of its own and removes it.

Usage: benchmarks/drain_rate.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from caisson_proto import tracerd_pb2 as pb
from caisson_tracerd import bpfsys
from caisson_tracerd.journal import Journal
from caisson_tracerd.layout import Layout
from timing import machine, median, table
from witness_cost import Rig

RING = 1 << 26
OPENS = "import os\nfor _ in range(400000):\n os.close(os.open('/dev/null', 0))\n"


def once(rig: Rig, root: Path) -> tuple[int, int, float, float]:
    """(records, bytes, CPU seconds, seconds): the daemon is stopped while the ring fills, and we drain in its place."""
    box = rig.stub.CreateBox(pb.CreateBoxRequest(id="full", ring_bytes=RING)).box
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", sys.executable, "-S", "-c", OPENS], stdin=subprocess.PIPE
    )
    rig.stub.Admit(pb.AdmitRequest(id="full", pid=process.pid))
    os.kill(rig.process.pid, signal.SIGSTOP)
    try:
        process.communicate(b"\n")
        pins = Layout(root / "run", root / "state").pins / "boxes_rings"
        (pin,) = (path for path in pins.iterdir() if path.name.endswith(f"_{RING}"))
        ring = bpfsys.Ring(bpfsys.pinned(pin), RING)
        records = len(ring.kinds())
        journal = Journal(root / "journal", ring.consumed)
        cpu, clock = time.process_time(), time.perf_counter()
        count = journal.drain(ring)
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        journal.close()
        ring.close()
        (root / "journal").unlink()
    finally:
        os.kill(rig.process.pid, signal.SIGCONT)
    rig.stub.DropBox(pb.DropBoxRequest(id=box.id))
    return records, count, cpu, clock


def measure(rounds: int) -> list[tuple[int, int, float, float]]:
    root = Path(tempfile.mkdtemp(prefix="caisson-bench-"))
    try:
        with Rig(root) as rig:
            return [once(rig, root) for _ in range(rounds)]
    finally:
        shutil.rmtree(root)


def rate(found: list[tuple[int, int, float, float]]) -> float:
    """Records for one second of CPU, median."""
    return median([records / cpu for records, _, cpu, _ in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    found = measure(parser.parse_args().rounds)
    print(machine())
    rows = [
        (str(records), f"{size / records:.0f}", f"{records / cpu / 1e6:.2f}", f"{records / clock / 1e6:.2f}",
         f"{size / cpu / 1e9:.2f}")
        for records, size, cpu, clock in found
    ]  # fmt: skip
    table(
        "Ring to journal, one core (aim: 2 M records/s)",
        ("records", "bytes each", "M/s of CPU", "M/s by the clock", "GB/s of CPU"),
        rows,
    )


if __name__ == "__main__":
    main()
