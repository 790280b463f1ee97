"""Real boxes behind a real gate process; local servers stand for the world, and what they were sent is the truth.

The names are all below `.test`, the addresses for documentation, and nothing leaves the machine: the gate finds a name
only where the test pinned it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caisson_gate.client import GateBox, GateProcess, Opening
from caisson_gate.events import read
from caisson_runner.boxes import listeners
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Bind, Command, Finished
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec
from http_rig import World

HEAD = 'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n'
WEB = HEAD + '[[allow]]\nid = "web"\nhosts = ["web.test"]\nports = [80, 443]\nmethods = ["GET", "POST"]\n'


@dataclass
class Boxed:
    """A box, its gate, and what it was told."""

    box: LocalBox
    gate: GateBox
    folder: Path
    env: dict[str, str]

    async def sh(self, line: str, **options: Any) -> Finished:
        """Run a shell line in the box."""
        return await self.run("/bin/sh", "-c", line, **options)

    async def py(self, source: str, **options: Any) -> str:
        """Run Python source in the box; what it printed. It must end well."""
        ended = await self.run("/usr/bin/python3", "-c", source, **options)
        assert ended.ok, ended.stderr.decode("utf-8", "replace")[-2000:]
        return ended.stdout.decode()

    async def run(self, *argv: str, **options: Any) -> Finished:
        command = Command(argv, env=self.env, wall_s=120, **options)
        return await (await self.box.start(command)).wait()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal so far, its chain checked."""
        return [one for one in read(self.folder / "events.jsonl") if not kinds or one["kind"] in kinds]

    async def closed(self) -> list[dict[str, Any]]:
        """Close the gate, so that everything is told; the whole journal."""
        await self.gate.close()
        return self.events()


@dataclass
class Rig:
    """An engine, a gate process and a world, for one test."""

    engine: LocalEngine
    world: World
    folder: Path
    processes: list[GateProcess] = field(default_factory=list)
    boxes: int = 0

    @contextlib.asynccontextmanager
    async def process(self, *resolve: str) -> AsyncIterator[GateProcess]:
        """A gate process that knows the world's servers (those that are there already) and trusts them."""
        pins = [f"{name}={address}:{port}" for name, (address, port) in self.world.pins.items()]
        folder = self.folder / f"gate-{secrets.token_hex(4)}"
        async with GateProcess(folder, run="r", resolve=[*pins, *resolve], upstream_ca=self.world.ca) as process:
            yield process

    @contextlib.asynccontextmanager
    async def boxed(
        self,
        process: GateProcess,
        policy: str = WEB,
        *,
        files: Mapping[str, Path | bytes] = MappingProxyType({}),
        java: bool = False,
        **options: Any,
    ) -> AsyncIterator[Boxed]:
        """A box behind the gate, with these files in it; ``java``: they make the folder of Java's trust store."""
        self.boxes += 1
        folder = self.folder / f"out-{self.boxes}"
        folder.mkdir()
        ports = await process.check(policy.encode(), "policy.toml")
        snapshot = await self.engine.snapshot(SnapshotSpec(files=dict(files)))
        binds = [Bind(source, target) for source, target in process.files if java or "java" not in target]
        async with self.engine.fork(snapshot, network="gate", binds=binds) as box:
            made = await listeners.listen(box, ports)
            opening = Opening(box.id, "r", policy.encode(), "policy.toml", folder, **options)
            gate = await process.open(opening, [(one.about, one.descriptor) for one in made])
            listeners.close(made)
            yield Boxed(box, gate, folder, {**process.env, **process.placeholders[policy.encode()]})

    @contextlib.asynccontextmanager
    async def one(self, policy: str = WEB, *resolve: str, **options: Any) -> AsyncIterator[Boxed]:
        """A box behind a gate process of its own."""
        async with self.process(*resolve) as process, self.boxed(process, policy, **options) as boxed:
            yield boxed


def dump(events: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(one) for one in events)
