"""What a clean box costs in Docker: p50 and p90 of a fork by the docker engine, beside the local engine and beside
Docker's own `create`, `start` and `rm` of the same image, in one run.

*ready* is the time from asking for a fork until the command waits at its gate inside the box; *whole* adds /bin/true,
its end and the removal of the box. Docker itself has no gate: *ready* is create + start there, *whole* adds an exec of
/bin/true and a forced rm. Rounds alternate. Uses the daemon of DOCKER_HOST; without it, one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/docker"))
from caisson_runner.boxes.docker import DockerEngine
from caisson_runner.boxes.docker_image import INIT, tag
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store
from docker_daemon import dockerd, why_not  # pyright: ignore[reportMissingImports]
from timing import machine, percentile, table


@contextmanager
def daemon(folder: Path) -> Iterator[str]:
    if host := os.environ.get("DOCKER_HOST"):
        yield host
    else:
        with dockerd(folder / "dockerd") as running:
            yield running.host


async def by_engine(engine: Any, snapshot: Snapshot) -> tuple[float, float]:
    """(ready, whole) of one fork, seconds."""
    begun = time.perf_counter()
    ready = 0.0

    async def admit(_pid: int) -> None:
        nonlocal ready
        ready = time.perf_counter() - begun

    async with engine.fork(snapshot) as box:
        finished = await (await box.start(Command(("/bin/true",), cwd="/"), admit=admit)).wait()
        assert finished.ok, finished
    return ready, time.perf_counter() - begun


def by_docker(client: Any, snapshot: Snapshot, init: Path) -> tuple[float, float]:
    """The same by Docker alone: network none, the same mounts of the host's /usr."""
    from caisson_runner.boxes.docker_image import host_usr

    volumes = {str(source): {"bind": target, "mode": "ro"} for target, source in host_usr().items()}
    volumes[str(init)] = {"bind": INIT, "mode": "ro"}
    begun = time.perf_counter()
    container = client.containers.create(tag(snapshot), network_mode="none", volumes=volumes)
    container.start()
    ready = time.perf_counter() - begun
    assert container.exec_run(["/bin/true"]).exit_code == 0
    container.remove(force=True)
    return ready, time.perf_counter() - begun


async def measure(rounds: int, home: Path, host: str) -> dict[str, list[tuple[float, float]]]:
    import docker

    times: dict[str, list[tuple[float, float]]] = {"local engine": [], "docker engine": [], "docker itself": []}
    client = docker.DockerClient(base_url=host)
    store = Store(home)
    async with LocalEngine(store) as local, DockerEngine(store, host=host) as engine:
        snapshot = await engine.snapshot(SnapshotSpec())
        for number in range(rounds + 1):
            took = {
                "local engine": await by_engine(local, snapshot),
                "docker engine": await by_engine(engine, snapshot),
                "docker itself": await asyncio.to_thread(by_docker, client, snapshot, home / "docker/init"),
            }
            for name, pair in took.items():
                if number:  # the first warms caches
                    times[name].append(pair)
    client.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON document, seconds")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"fork_docker: {reason}")
    with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)) as host:
        times = asyncio.run(measure(options.rounds, Path(folder) / "store", host))
    if options.json:
        json.dump({"machine": machine(), "load": os.getloadavg()[0], "seconds": times}, sys.stdout)
        return
    rows = []
    for name, pairs in times.items():
        columns = ([ready for ready, _ in pairs], [whole for _, whole in pairs])
        rows.append((name, *(f"{1000 * percentile(column, share):.0f}" for column in columns for share in (0.5, 0.9))))
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds")
    table("Fork of a clean box, ms", ("by", "ready p50", "p90", "whole p50", "p90"), rows)


if __name__ == "__main__":
    main()
