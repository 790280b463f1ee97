"""What the gate costs: through it, through a bare mitmproxy, and straight to the upstream, in turns in one run.

Client, proxy and upstream are processes of their own on the same cores, so the share between two columns says more than
a figure, and the proxy's processor time more than the clock where the machine has other work; hence the best of the
rounds. ``--short`` for an impression, ``--gib N`` for the size of the streamed body.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caisson_gate.ca import Authority
from cryptography.hazmat.primitives import serialization
from timing import machine, table

ROLES = Path(__file__).with_name("gate_roles.py")
NAME = "bench.test"
PROXIES = ("mitmproxy", "gate")
WAYS = ("direct", *PROXIES)
CASES = (
    ("keep-alive http, 8 connections", "many", False, 8),
    ("keep-alive https, 8 connections", "many", True, 8),
    ("keep-alive http, 1 connection", "many", False, 1),
    ("new TLS connection each, 4 at once", "fresh", True, 4),
)


@dataclass(frozen=True)
class Way:
    """How a client gets to the upstream."""

    host: str
    plain: int
    secure: int
    ca: str
    process: subprocess.Popen[str] | None


def certificates(folder: Path) -> None:
    """A world with an upstream by name and by address."""
    world = Authority("bench")
    key = world.leaf_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "world.pem").write_bytes(world.pem)
    for name in (NAME, "127.0.0.1"):
        (folder / f"{name}.pem").write_bytes(world.leaf(name).public_bytes(serialization.Encoding.PEM) + key)


@contextlib.contextmanager
def running(role: str, folder: Path, *args: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process of the benchmark, and what it says when it is ready."""
    command = [sys.executable, str(ROLES), role, str(folder), *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"{role} did not start")
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()


def ask(folder: Path, **plan: Any) -> dict[str, Any]:
    """One client, until it is done."""
    command = [sys.executable, str(ROLES), "client", str(folder), json.dumps(plan)]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def peak(process: subprocess.Popen[str]) -> int:
    """Peak resident memory since `forget`, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def forget(process: subprocess.Popen[str]) -> None:
    """Begin a new peak."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def spent(way: Way) -> float:
    """Processor seconds of the proxy so far."""
    if way.process is None:
        return 0.0
    fields = Path(f"/proc/{way.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rates(ways: dict[str, Way], folder: Path, rounds: int, seconds: float) -> None:
    """Requests and connections a second, what each costs the proxy, and how long each takes."""
    rows, slow = [], []
    for title, kind, secure, connections in CASES:
        made: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                port, ca = (way.secure, way.ca) if secure else (way.plain, "")
                plan = {"kind": kind, "host": way.host, "port": port, "ca": ca, "connections": connections}
                before = spent(way)
                done = ask(folder, **plan, seconds=seconds)
                done["cpu"] = (spent(way) - before) / done["count"]
                made[name].append(done)
        rate = {name: max(one["count"] / one["took"] for one in results) for name, results in made.items()}
        cost = {name: 1e6 * min(one["cpu"] for one in results) for name, results in made.items()}
        cells = [f"{rate[name]:.0f}/s" for name in WAYS] + [f"{cost[name]:.0f} us" for name in PROXIES]
        rows.append(
            (title, *cells, f"{rate['gate'] / rate['mitmproxy']:.0%}", f"{cost['mitmproxy'] / cost['gate']:.0%}")
        )
        for point in ("p50", "p99"):
            times = {name: 1e3 * min(one[point] for one in results) for name, results in made.items()}
            added = [f"{times[name] - times['direct']:.2f} ms" for name in PROXIES]
            slow.append((f"{title}, {point}", *(f"{times[name]:.2f} ms" for name in WAYS), *added))
    heads = ("", *WAYS, "CPU mitmproxy", "CPU gate", "share", "share by CPU")
    table("Requests (best of the rounds; CPU of the proxy for one; share: gate to mitmproxy, aim 95 %)", heads, rows)
    table("Latency", ("", *WAYS, "added by mitmproxy", "added by gate"), slow)


def streams(ways: dict[str, Way], folder: Path, rounds: int, mib: int) -> None:
    """A large body, and what memory it takes."""
    rows = []
    for title, secure in (("http", False), ("https", True)):
        speed: dict[str, list[float]] = {name: [] for name in ways}
        memory: dict[str, list[int]] = {name: [] for name in ways}
        cost: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                if way.process is not None:
                    forget(way.process)
                port, ca = (way.secure, way.ca) if secure else (way.plain, "")
                before = spent(way)
                done = ask(folder, kind="big", host=way.host, port=port, ca=ca, connections=1, mib=mib)
                speed[name].append(mib / done["took"])
                cost[name].append((spent(way) - before) / mib * 1024)
                memory[name].append(peak(way.process) if way.process is not None else 0)
        cpu = {name: min(cost[name]) for name in PROXIES}
        share = max(speed["gate"]) / max(speed["mitmproxy"])
        cells = [f"{max(speed[name]):.0f} MiB/s" for name in WAYS]
        rss = [f"{max(memory[name])} MiB" for name in PROXIES]
        cells += [f"{cpu[name]:.1f} s/GiB" for name in PROXIES]
        rows.append((f"{title}, {mib} MiB", *cells, f"{share:.0%}", f"{cpu['mitmproxy'] / cpu['gate']:.0%}", *rss))
    table(
        "Streaming (the gate hashes every byte; aim: flat memory)",
        ("", *WAYS, "CPU mitmproxy", "CPU gate", "share", "share by CPU", "RSS mitmproxy", "RSS gate"),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="an impression: shorter rounds, a smaller body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--gib", type=float, default=1.0)
    given, _ = parser.parse_known_args()
    rounds, seconds, mib = given.rounds, given.seconds, int(given.gib * 1024)
    if given.short:
        rounds, seconds, mib = 2, 1.0, 128
    print(machine())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        certificates(folder)
        _, said = stack.enter_context(running("upstream", folder))
        plain, by_name, by_address = (said["ports"][key] for key in ("plain", NAME, "127.0.0.1"))
        ways = {"direct": Way(NAME, plain, by_name, "world.pem", None)}
        for role, host, secure in (("bare", "127.0.0.1", by_address), ("gate", NAME, by_name)):
            process, said = stack.enter_context(running(role, folder, plain, secure))
            ports = said["ports"]
            ways["mitmproxy" if role == "bare" else role] = Way(
                host, ports["plain"], ports["secure"], said["ca"], process
            )
        rates(ways, folder, rounds, seconds)
        streams(ways, folder, max(1, rounds // 2), mib)


if __name__ == "__main__":
    main()
