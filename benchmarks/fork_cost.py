"""What a clean box costs: p50 and p99 of a fork, as root and as a plain user, beside a bare bubblewrap, in one run.

*ready* is the time from asking for a fork until the command waits at its gate inside the box with everything but its
exec done; *whole* adds /bin/true, its end and the removal of the box. A bare bwrap has no gate, so only its *whole* is
comparable: process start to process end, same namespaces, no overlay, no cgroup, no seccomp. Rounds alternate.
Aim: ready p50 at most 10 ms as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
from timing import machine, percentile, table

BARE = shlex.split(
    "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--proc /proc --dev /dev --tmpfs /tmp --die-with-parent /bin/true"
)


async def measure(rounds: int, home: Path) -> dict[str, list[float]]:
    """Seconds for each round."""
    times: dict[str, list[float]] = {"ready": [], "whole": [], "bare": []}
    async with LocalEngine(Store(home)) as engine:
        snapshot = await engine.snapshot(SnapshotSpec())
        for number in range(rounds + 3):
            begun = time.perf_counter()
            ready = 0.0

            async def admit(_pid: int, begun: float = begun) -> None:
                nonlocal ready
                ready = time.perf_counter() - begun

            async with engine.fork(snapshot) as box:
                finished = await (await box.start(Command(("/bin/true",), cwd="/"), admit=admit)).wait()
                assert finished.ok, finished
            whole = time.perf_counter() - begun
            begun = time.perf_counter()
            bare = await asyncio.create_subprocess_exec(*BARE)
            assert await bare.wait() == 0
            if number >= 3:  # the first ones warm caches
                times["ready"].append(ready)
                times["whole"].append(whole)
                times["bare"].append(time.perf_counter() - begun)
    return times


def as_plain_user(rounds: int) -> dict[str, list[float]] | str:
    """The same, measured by `nobody` when we are root; a sentence when that cannot be."""
    nobody, system = 65_534, "/usr/bin/python3"
    parts = [Path(__file__).resolve().parents[1] / part for part in ("runner", "tracerd", "proto")]
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, nobody, nobody)
        env = {"PATH": "/usr/bin:/bin", "HOME": home, "CAISSON_HOME": home}
        env["PYTHONPATH"] = ":".join([*map(str, parts), sysconfig.get_path("platlib")])
        user = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"]
        done = subprocess.run(
            [*user, system, str(Path(__file__).resolve()), "--rounds", str(rounds), "--raw"],
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--raw", action="store_true", help="only the times as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        own = asyncio.run(measure(options.rounds, Path(home)))
    if options.raw:
        json.dump(own, sys.stdout)
        return
    measured: dict[str, dict[str, list[float]] | str] = {"plain user": own}
    if os.geteuid() == 0:
        measured = {"root": own, "plain user": as_plain_user(options.rounds)}
    print(f"{machine()}; {options.rounds} rounds")
    rows = []
    for who, times in measured.items():
        if isinstance(times, str):
            print(f"{who}: left out: {times}")
            continue
        bare = percentile(times["bare"], 0.5)
        for kind, label in (
            ("ready", "caisson fork, ready"),
            ("whole", "caisson fork, whole"),
            ("bare", "bare bwrap, whole"),
        ):
            values = times[kind]
            half, most = percentile(values, 0.5), percentile(values, 0.99)
            rows.append((who, label, f"{1000 * half:.1f}", f"{1000 * most:.1f}", f"{half / bare:.2f}"))
    table("Fork of a clean box (aim: ready p50 ≤ 10 ms as root)", ("user", "what", "p50 ms", "p99 ms", "× bare"), rows)


if __name__ == "__main__":
    main()
