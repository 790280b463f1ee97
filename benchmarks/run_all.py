"""The benchmarks of boxes and witness, one after the other. Starts a tracerd of its own when root and none answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRACERD = (str(Path(sys.executable).with_name("tracerd")),)


def answers() -> bool:
    return subprocess.run([*TRACERD, "status"], capture_output=True, check=False).returncode == 0


def run(names: tuple[str, ...]) -> list[str]:
    """Those that failed."""
    failed = []
    for name in names:
        print(f"\n== {name}", flush=True)
        program, *short = name.split()
        command = [sys.executable, str(HERE / f"{program}.py"), *short, *sys.argv[1:]]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    return failed


def main() -> None:
    daemon = None
    if os.geteuid() == 0 and not answers():
        daemon = subprocess.Popen(
            [*TRACERD, "serve", "--unload-on-exit"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while not answers() and daemon.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
    try:
        failed = run(("fork_cost", "suite_rate", "witness_overhead", "gate_bench --short"))
    finally:
        if daemon is not None:
            daemon.terminate()
            daemon.wait()
    if os.geteuid() == 0:
        if answers():
            print("\na tracerd runs on this machine: what follows as 'no programs' and 'bare' has its programs too")
        failed += run(("witness_floor", "witness_bench"))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
