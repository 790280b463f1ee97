#!/usr/bin/env python3
"""Everything the witness costs, in one run, beside strace and bpftrace.

1. Added ns for a system call: outside of any box, and inside one, for calls that are recorded and for others.
2. Added wall time of three workloads (a build, pytest, a storm of opens) under eBPF, strace -f, strace --seccomp-bpf,
   and bpftrace's opensnoop and execsnoop, each round beside a bare one.
3. Records drained by one core in a second; the daemon's memory; how soon it is ready, cold and warm.

Needs root; starts a daemon of its own and removes it. What cannot run here is left out with its reason.
Aims: build at most 3 %, opens at most 15 %, 2 million records/s, 60 MB, 2 s cold, 0.3 s warm.

Usage: benchmarks/witness_bench.py [--rounds 3] [--calls 100000] [--only starts]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import drain_rate
from caisson_proto import tracerd_pb2 as pb
from timing import machine, others_watching, table
from witness_cost import CASES, WORK, Rig, measure, middle

FILES = 24
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
struct node {{ struct node *next; char name[64]; int value; }};
static struct node *add{n}(struct node *list, const char *name) {{
	struct node *made = malloc(sizeof(*made));
	made->next = list; strncpy(made->name, name, 63); made->value = {n}; return made;
}}
int work{n}(int argc, char **argv) {{
	struct node *list = 0; int sum = 0;
	for (int i = 0; i < argc; i++) list = add{n}(list, argv[i]);
	for (struct node *at = list; at; at = at->next) sum += at->value * (int)strlen(at->name);
	return printf("%d\\n", sum);
}}
"""
TEST = """
import pytest

@pytest.mark.parametrize("n", range(40))
def test_it(n, tmp_path):
    (tmp_path / "x").write_text(str(n))
    assert int((tmp_path / "x").read_text()) == n
"""
OPENS = """
#include <fcntl.h>
#include <unistd.h>
int main(void) { for (int i = 0; i < 60000; i++) close(open("/etc/hostname", O_RDONLY)); return 0; }
"""
TRACEFS = (
    "unshare", "-m", "sh", "-c",
    "mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug; exec bpftrace $0",
)  # fmt: skip
"""bpftrace where the tracing file system need not be mounted on the host."""
TRACED = "trace=open,openat,openat2,creat,execve,execveat,connect"


def workloads(root: Path) -> dict[str, list[str]]:
    """Name and command; everything lies below ``root``."""
    build = root / "build"
    build.mkdir()
    for number in range(FILES):
        (build / f"f{number}.c").write_text(SOURCE.format(n=number))
    objects = " ".join(f"f{number}.o" for number in range(FILES))
    (build / "Makefile").write_text(f"all: {objects}\n%.o: %.c\n\tcc -O2 -Wall -c -o $@ $<\nclean:\n\trm -f *.o\n")
    (root / "test_it.py").write_text(TEST)
    (root / "opens.c").write_text(OPENS)
    subprocess.run(["cc", "-O2", "-o", root / "opens", root / "opens.c"], check=True)
    found = {
        "build (make -j2, 24 files)": ["make", "-s", "-B", "-j2", "-C", str(build)],
        "pytest (40 tests)": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(root / "test_it.py")],
        "open storm (60 000)": [str(root / "opens")],
    }
    return {name: command for name, command in found.items() if shutil.which(command[0])}


Times = tuple[float, float]
"""Seconds by the clock, and of CPU: the command's and its watcher's."""


def timed(command: list[str], wrap: tuple[str, ...] = (), admit: Callable[[int], None] | None = None) -> Times:
    """From the opening of a gate to the command's end."""
    gate = ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", *wrap, *command]
    process = subprocess.Popen(gate, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if admit is not None:
        admit(process.pid)
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process.communicate(b"\n")
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode} under {wrap[:1] or 'nothing'}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def snooping(folder: Path) -> Iterator[str]:
    """opensnoop and execsnoop at work, system-wide as they are; yields why not, or nothing."""
    tools = [Path("/usr/sbin") / f"{name}.bt" for name in ("opensnoop", "execsnoop")]
    if shutil.which("bpftrace") is None or not all(tool.exists() for tool in tools):
        yield "bpftrace and its tools are not installed (apt-get install bpftrace)"
        return
    running: list[subprocess.Popen[bytes]] = []
    try:
        for tool in tools:
            log = folder / f"{tool.name}.log"
            with log.open("wb") as out:
                running.append(subprocess.Popen([*TRACEFS, str(tool)], stdout=out, stderr=subprocess.STDOUT))
            deadline = time.monotonic() + 20
            while b"Attaching" not in log.read_bytes():
                if running[-1].poll() is not None or time.monotonic() > deadline:
                    said = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
                    yield f"{tool.name} does not run on this kernel: {said[0][:160] if said else 'no word'}"
                    return
                time.sleep(0.05)
        time.sleep(1)
        failed = [one for one in running if one.poll() is not None]
        yield "a tool ended at once" if failed else ""
    finally:
        for one in running:
            one.send_signal(signal.SIGINT)
        for one in running:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def calls(root: Path, count: int, rounds: int) -> None:
    """The table of ns for each call. Rounds alternate between no programs, outside and inside."""
    (root / "work.c").write_text(WORK)
    subprocess.run(["cc", "-O2", "-o", root / "work", root / "work.c"], check=True)
    rows: dict[str, list[list[float]]] = {"no programs": [], "outside a box": [], "inside a box": []}
    for _ in range(rounds):
        rows["no programs"].append(measure(root / "work", count))
        with Rig(root) as rig:
            rows["outside a box"].append(measure(root / "work", count))
            rig.stub.CreateBox(pb.CreateBoxRequest(id="box", ring_bytes=1 << 24))
            rows["inside a box"].append(measure(root / "work", count, rig, "box"))
    base = middle(rows["no programs"])
    table(
        "ns per system call (added); getppid is not recorded, opens are",
        ("where", *CASES),
        [
            (name, *(f"{value:.0f} ({value - zero:+.0f})" for value, zero in zip(middle(found), base, strict=True)))
            for name, found in rows.items()
        ],
    )


def runs(root: Path, rounds: int) -> None:
    """The table of workloads. Every round runs every way once, so that a noisy minute hits all."""
    loads = workloads(root)
    times: dict[tuple[str, str], list[Times]] = {}
    dropped = records = 0
    left_out: dict[str, str] = {}
    strace = shutil.which("strace")
    ways: dict[str, tuple[str, ...]] = {"bare": ()}
    if strace is None:
        left_out["strace"] = "not installed"
    else:
        ways["strace -f"] = (strace, "-f", "-o", "/dev/null")
        ways["strace --seccomp-bpf"] = (
            strace, "-f", "--seccomp-bpf", "-e", TRACED, "-o", "/dev/null",
        )  # fmt: skip
    for number in range(rounds):
        for load, command in loads.items():
            for way, wrap in ways.items():
                if way != "strace -f" or number == 0:  # the slow one once
                    times.setdefault((load, way), []).append(timed(command, wrap))
        with Rig(root) as rig:
            for at, (load, command) in enumerate(loads.items()):
                times.setdefault((load, "ours running, outside"), []).append(timed(command))
                box = f"load-{at}"
                rig.stub.CreateBox(pb.CreateBoxRequest(id=box, ring_bytes=1 << 24))
                daemon = rig.cpu_s()
                took, cpu = timed(command, (), partial(admitted, rig, box))
                counts = rig.stub.SealBox(pb.SealBoxRequest(id=box)).counts
                times.setdefault((load, "ours, in a box"), []).append((took, cpu + rig.cpu_s() - daemon))
                for one in counts:
                    dropped += one.dropped_ring + one.dropped_map
                    records += one.delivered
                rig.stub.DropBox(pb.DropBoxRequest(id=box))
        with snooping(root) as problem:
            if problem:
                left_out["bpftrace opensnoop + execsnoop"] = problem
            else:
                for load, command in loads.items():
                    times.setdefault((load, "opensnoop + execsnoop"), []).append(timed(command))
    rows = []
    for load in loads:
        wall, cpu = best(times[load, "bare"])
        for (name, way), found in times.items():
            if name == load:
                own_wall, own_cpu = best(found)
                rows.append(
                    (load, way, f"{own_wall:.2f}", f"{100 * (own_wall / wall - 1):+.1f} %", f"{own_cpu:.2f}",
                     f"{100 * (own_cpu / cpu - 1):+.1f} %")
                )  # fmt: skip
    table(
        "Workloads, best round each; CPU is the watcher's too, and less disturbed by others than the clock is "
        "(aims: build +3 %, open storm +15 %)",
        ("workload", "watched by", "s", "added", "CPU s", "added"),
        rows,
    )
    print(f"  {records} records of ours, {dropped} dropped")
    for name, why in left_out.items():
        print(f"  {name}: left out: {why}")


def admitted(rig: Rig, box: str, pid: int) -> None:
    rig.stub.Admit(pb.AdmitRequest(id=box, pid=pid))


def best(found: list[Times]) -> Times:
    """The least of each: what others do only ever adds."""
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def starts(root: Path) -> None:
    """Ready cold (compiled anew; from kept programs) and warm (pins in place), and memory then."""
    rows = []
    cache = root / "cache"
    for label, warm in (
        ("cold, compiled", False), ("cold, kept programs", False), ("warm, pins in place", True),
    ):  # fmt: skip
        found = []
        for _ in range(3):
            if label == "cold, compiled":
                shutil.rmtree(cache, ignore_errors=True)
            found.append(started(root, cache, warm))
        seconds, cpu, memory = (min(column) for column in zip(*found, strict=True))
        rows.append((label, f"{seconds:.2f}", f"{cpu:.2f}", f"{memory:.0f}"))
    table(
        "Start of the daemon, self-test included, least of 3 (aims: 2 s cold, 0.3 s warm, 60 MB)",
        ("start", "s", "CPU s", "MB"),
        rows,
    )


def started(root: Path, cache: Path, warm: bool) -> tuple[float, float, float]:
    """One start in folders of its own: (seconds, of CPU, MB). A warm one comes after a daemon that was killed."""
    rig = Rig(root)
    took = cpu = memory = 0.0
    # As installed: an installation has compiled its Python, a checkout under test may not be allowed to.
    environment = {**os.environ, "CAISSON_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(root / "python")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "caisson_tracerd.cli", "serve", *rig.places, "--unload-on-exit"]
    for again in (True, False) if warm else (False,):
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stderr is not None
        while "ready" not in (line := process.stderr.readline()):
            if not line:
                raise SystemExit("tracerd did not start")
        took = time.monotonic() - begun
        time.sleep(0.5)
        memory = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
        process.send_signal(signal.SIGKILL if again else signal.SIGTERM)
        process.communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--only", choices=("calls", "workloads", "starts", "drain"), help="one of the parts")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("witness_bench needs root")
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; {options.rounds} rounds, medians")
    print(others_watching())
    root = Path(tempfile.mkdtemp(prefix="caisson-bench-"))
    parts: dict[str, Callable[[], None]] = {
        "calls": lambda: calls(root, options.calls, options.rounds),
        "workloads": lambda: runs(root, options.rounds),
        "starts": lambda: starts(root),
        "drain": lambda: drained(options.rounds),
    }
    try:
        for name, part in parts.items():
            if options.only in (None, name):
                part()
    finally:
        shutil.rmtree(root)


def drained(rounds: int) -> None:
    found = drain_rate.measure(rounds)
    print(f"\nRing to journal: {drain_rate.rate(found) / 1e6:.1f} M records/s on one core (aim: 2)")


if __name__ == "__main__":
    main()
