"""What the gate adds to a box, and many boxes behind one gate at once.

Boxes with and without a gate are made in turn, so that both sides of every row saw the same machine. `--boxes N` is how
many are held and served at once (100), `--rounds N` how often each single step is measured (40).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from caisson_gate.client import GateBox, GateProcess, Opening
from caisson_runner.boxes import listeners
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Bind, BoxLimits, Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store

POLICY = b"""
schema = "caisson.gate/v1"
network_mode = "allowlist"
[[allow]]
id = "web"
hosts = ["web.test"]
ports = [80, 443]
"""
CLIENT = """
import http.client
for _ in range(REQUESTS):
    c = http.client.HTTPConnection("web.test", 80, timeout=120)
    c.request("GET", "/")
    assert c.getresponse().read() == b"hello\\n"
    c.close()
"""
LIMITS = BoxLimits(memory_bytes=256 << 20, pids=64)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
            await writer.drain()
    writer.close()


class Bench:
    def __init__(self, engine: LocalEngine, gate: GateProcess, snapshot: Snapshot, ports: list[int], out: Path) -> None:
        self.engine, self.gate, self.snapshot, self.ports, self.out = engine, gate, snapshot, ports, out
        self.binds = [Bind(source, target) for source, target in gate.files if "java" not in target]
        self.steps: dict[str, list[float]] = {}
        self.count = 0

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.steps.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)

    async def open(self, box: LocalBox) -> GateBox:
        self.count += 1
        folder = self.out / str(self.count)
        folder.mkdir()
        with self.step("  make its sockets"):
            made = await listeners.listen(box, self.ports)
        with self.step("  serve them"):
            gated = await self.gate.open(
                Opening(box.id, "bench", POLICY, "bench", folder), [(one.about, one.descriptor) for one in made]
            )
        listeners.close(made)
        return gated

    async def plain(self) -> None:
        with self.step("a box without"):
            async with self.engine.fork(self.snapshot, limits=LIMITS) as box:
                await (await box.start(Command(("/bin/true",)))).wait()

    async def gated(self) -> None:
        with self.step("a box behind the gate"):
            async with self.engine.fork(self.snapshot, limits=LIMITS, network="gate", binds=self.binds) as box:
                gated = await self.open(box)
                await (await box.start(Command(("/bin/true",)))).wait()
                with self.step("  close it"):
                    await gated.close()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[LocalBox]:
        async with self.engine.fork(self.snapshot, limits=LIMITS, network="gate", binds=self.binds) as box:
            gated = await self.open(box)
            yield box
            await gated.close()

    async def many(self, boxes: int, requests: int) -> None:
        """All held at once, then all asking at once."""
        begun = time.perf_counter()
        async with contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(self.held()) for _ in range(boxes)]
            up = time.perf_counter() - begun
            print(f"{boxes} boxes behind one gate up in {up:.2f} s; the gate holds {resident(self.gate.pid):.0f} MiB")
            source = CLIENT.replace("REQUESTS", str(requests))
            begun = time.perf_counter()
            command = Command(("/usr/bin/python3", "-S", "-c", source))
            running = [await box.start(command) for box in held]
            ended = [await process.wait() for process in running]
            took = time.perf_counter() - begun
            failed = [one.stderr[-200:] for one in ended if not one.ok]
            print(
                f"{boxes} boxes asked {requests} times each, every request a new connection: {len(failed)} failed, "
                f"{boxes * requests / took:.0f} requests/s with the start of {boxes} interpreters; "
                f"the gate holds {resident(self.gate.pid):.0f} MiB"
            )
            for text in failed[:3]:
                print(text)


def resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def table(steps: dict[str, list[float]]) -> None:
    print(f"{'step':<24} {'n':>4} {'p50 ms':>8} {'p90 ms':>8} {'min ms':>8}")
    for name in sorted(steps, key=lambda name: name.startswith(" ")):
        values = sorted(steps[name])
        row: Sequence[float] = (statistics.median(values), values[int(len(values) * 0.9)], values[0])
        print(f"{name:<24} {len(values):>4} " + " ".join(f"{value:>8.2f}" for value in row))
    added = statistics.median(steps["a box behind the gate"]) - statistics.median(steps["a box without"])
    print(f"added by the gate, median: {added:.1f} ms")


async def work(boxes: int, requests: int, rounds: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        home.chmod(0o755)
        begun = time.perf_counter()
        async with (
            LocalEngine(Store(home / "store")) as engine,
            GateProcess(home / "gate", run="bench", resolve=[f"web.test=127.0.0.1:{port}"]) as gate,
        ):
            print(f"engine {engine.name}; the gate process was ready after {time.perf_counter() - begun:.2f} s")
            snapshot = await engine.snapshot(SnapshotSpec())
            out = home / "out"
            out.mkdir()
            bench = Bench(engine, gate, snapshot, await gate.check(POLICY, "bench"), out)
            await bench.plain()
            await bench.gated()
            bench.steps.clear()
            for _ in range(rounds):
                await bench.plain()
                await bench.gated()
            table(bench.steps)
            await bench.many(boxes, requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", type=int, default=100)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    asyncio.run(work(options.boxes, options.requests, options.rounds))


if __name__ == "__main__":
    main()
