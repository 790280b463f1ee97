#!/usr/bin/env python3
"""What the eBPF witness costs: ns per system call outside and inside a box, and the daemon's own calls and memory.

Both sides of every comparison are taken in this run, alternating: without programs, with programs (outside of any box),
and inside a box. Needs root; starts a daemon of its own in a temporary folder and removes everything.

Usage: benchmarks/witness_cost.py [--calls 200000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc

WORK = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(int argc, char **argv) {
	long n = atol(argv[1]);
	char c;
	if (read(0, &c, 1) < 0) return 1;
	double t0 = now();
	for (long i = 0; i < n; i++) syscall(SYS_getppid);
	double t1 = now();
	for (long i = 0; i < n / 10; i++) close(open("/etc/hostname", O_RDONLY));
	double t2 = now();
	for (long i = 0; i < n / 10; i++) open("/nonexistent/path", O_RDONLY);
	double t3 = now();
	printf("%f %f %f\n", (t1 - t0) / n, (t2 - t1) / (n / 10), (t3 - t2) / (n / 10));
	return 0;
}
"""
CASES = ("getppid", "open + close", "open, ENOENT")


class Rig:
    """A daemon in folders of its own."""

    def __init__(self, root: Path) -> None:
        self.places = [
            f"--run-dir={root / 'run'}",
            f"--state-dir={root / 'state'}",
            f"--cgroup-parent=cbench-{os.getpid()}",
        ]
        self.socket = root / "run" / "0" / "tracerd.sock"

    def __enter__(self) -> Rig:
        command = [sys.executable, "-m", "caisson_tracerd.cli", "serve", *self.places, "--unload-on-exit"]
        begun = time.monotonic()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        while "ready" not in (line := self.process.stderr.readline()):
            if not line:
                raise SystemExit("tracerd did not start")
        self.start_s = time.monotonic() - begun
        channel: Any = grpc.insecure_channel(f"unix:{self.socket}")
        self.stub: Any = rpc.TracerdStub(channel)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=20)

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(program: Path, calls: int, rig: Rig | None = None, box: str = "") -> list[float]:
    process = subprocess.Popen([program, str(calls)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if rig is not None and box:
        rig.stub.Admit(pb.AdmitRequest(id=box, pid=process.pid))
    out, _ = process.communicate(b"x")
    return [float(word) for word in out.split()]


def middle(rows: list[list[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def daemon_calls(rig: Rig, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call in the life of a box."""
    found: dict[str, list[float]] = {"create": [], "admit": [], "seal": [], "drop": []}

    def timed(name: str, call: Any, request: Any) -> None:
        begun = time.perf_counter()
        call(request)
        found[name].append((time.perf_counter() - begun) * 1000)

    for number in range(rounds):
        box = f"call-{number}"
        process = subprocess.Popen(["sleep", "10"])
        timed(
            "create", rig.stub.CreateBox, pb.CreateBoxRequest(id=box, limits=pb.Limits(memory_bytes=1 << 30, pids=64))
        )
        timed("admit", rig.stub.Admit, pb.AdmitRequest(id=box, pid=process.pid))
        timed("seal", rig.stub.SealBox, pb.SealBoxRequest(id=box))
        timed("drop", rig.stub.DropBox, pb.DropBoxRequest(id=box))
        process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="caisson-bench-"))
    try:
        (root / "work.c").write_text(WORK)
        subprocess.run(["cc", "-O2", "-o", root / "work", root / "work.c"], check=True)
        rows: dict[str, list[list[float]]] = {"no programs": [], "outside a box": [], "inside a box": []}
        cpu = records = memory = start = 0.0
        calls: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            rows["no programs"].append(measure(root / "work", options.calls))
            with Rig(root) as rig:
                rows["outside a box"].append(measure(root / "work", options.calls))
                rig.stub.CreateBox(pb.CreateBoxRequest(id="box", ring_bytes=1 << 24))
                before = rig.cpu_s()
                rows["inside a box"].append(measure(root / "work", options.calls, rig, "box"))
                counts = rig.stub.SealBox(pb.SealBoxRequest(id="box")).counts
                cpu += rig.cpu_s() - before
                records += sum(count.delivered for count in counts)
                lost = sum(count.dropped_ring for count in counts)
                if lost:
                    print(f"lost {lost} records")
                calls, memory, start = daemon_calls(rig, 40), rig.resident_mb(), rig.start_s
        base = middle(rows["no programs"])
        print(f"{'ns per call (median of ' + str(options.rounds) + ')':<28}" + "".join(f"{name:>22}" for name in CASES))
        for name, found in rows.items():
            cells = [f"{value:.0f} (+{value - zero:.0f})" for value, zero in zip(middle(found), base, strict=True)]
            print(f"{name:<28}" + "".join(f"{cell:>22}" for cell in cells))
        print(
            f"\ndaemon: ready in {start:.2f} s (load and self-test), {memory:.0f} MB resident, "
            f"{cpu / records * 1e9:.0f} ns of CPU per record"
        )
        for name, values in calls.items():
            late = sorted(values)[int(len(values) * 0.95)]
            print(f"  {name:<7} p50 {statistics.median(values):5.2f} ms   p95 {late:5.2f} ms")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
