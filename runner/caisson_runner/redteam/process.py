"""The process of one engine's routes: it leaves the host's network for a world of its own, and never comes back.

``python -m caisson_runner.redteam.process`` reads its orders (`Orders`, JSON) from stdin and writes one JSON object a
line: ``{"outcome": …}``, ``{"say": text}``, ``{"absent": reason}`` when this engine cannot be had here, and
``{"failed": …}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from caisson_runner.boxes.engine import Engine
from caisson_runner.boxes.errors import BoxError
from caisson_runner.boxes.holder import calls
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store
from caisson_runner.errors import CaissonError
from caisson_runner.extras import install
from caisson_runner.interrupt import run_interruptible
from caisson_runner.redteam import world
from caisson_runner.redteam.canaries import Canaries, Held
from caisson_runner.redteam.errors import RedTeamError
from caisson_runner.redteam.gated import open_gate
from caisson_runner.redteam.prove import HostSide, prove
from caisson_runner.redteam.register import NETWORKS, Route, load_register, select
from caisson_runner.redteam.rig import Rig
from caisson_runner.tasks.search import scenarios_root
from caisson_runner.witness import choose

AT_ONCE: Final = 4
"""Boxes at a time: most of a box's life is waiting for the kernel."""
_LONG: Final = 40
"""Characters of a line that nobody writes twice by chance."""
_MOST_ANSWER: Final = 1 << 18
PLACES: Final = Path("/tmp")  # noqa: S108 - a short name
PREFIX: Final = "caisson-rt-"
STAND_IN: Final = """
import ctypes, sys
secret = ctypes.create_string_buffer(sys.stdin.readline().strip().encode(), 256)
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Orders:
    """What one process is to do."""

    engine: str
    out: str
    globs: tuple[str, ...] = ()
    quick: bool = False
    networks: tuple[str, ...] = NETWORKS
    witness: str = "auto"
    docker_host: str = ""
    home: str = ""
    task: str = ""
    bases: tuple[str, ...] = ()
    folder: str = ""
    """Of the registers; without it the routes that come with Caisson."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        said: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
        }
        return cls(**values)


def tell(**facts: Any) -> None:
    """One line to whoever started this process."""
    print(json.dumps(facts), flush=True)


def main() -> int:
    """The process's whole life. 0 unless it was interrupted: outcomes are lines, not exit codes."""
    _end_with_parent()
    orders = Orders.from_json(sys.stdin.readline())
    try:
        with _places() as places:
            held = Held(secrets.token_hex(16))
            canaries = Canaries(held)
            abstract = f"caisson-{secrets.token_hex(8)}"
            ports = canaries.on_host(places, abstract)
            canaries.in_folder(places / "shared")
            host = HostSide(ports["host_port"], ports["host_udp_port"], abstract)
            world.enter()
            context, trusted = _certificates(places)
            ports |= canaries.in_world(context)
            world.settle()
            _end_with_parent()  # new rights took it away
            (places / "secret").write_text(held.secret)
            facts = {
                **ports, "allowed": "web.allowed.test", "denied": "web.denied.test", "elsewhere": "198.51.100.7",
                "unix_path": str(places / "outside.sock"), "unix_abstract": abstract, "home": orders.home,
                "secret_path": str(places / "secret"), "touch_path": str(places / "touched"), "fix": [],
                "runner": os.getpid(), "workdir": "/app", "proxy_port": 3128, "deadline_s": 12,
            }  # fmt: skip
            run_interruptible(_run(orders, canaries, facts, Outside(places, host, trusted)))
    except CaissonError as problem:
        tell(failed=str(problem), code=problem.exit_code)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, CaissonError):
            raise
        tell(failed=str(first), code=first.exit_code)
    return 0


def _end_with_parent() -> None:
    """SIGTERM when the command is killed, so that nothing is left."""
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _places() -> Iterator[Path]:
    """A folder for canaries' files. Of a name too short to overflow a unix socket's; those of killed ones are swept."""
    for left in PLACES.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    top = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PLACES))
    try:
        top.chmod(0o755)
        shared = top / "shared"
        shared.mkdir()
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


@contextlib.contextmanager
def _stand_in(secret: str) -> Iterator[dict[str, int]]:
    """A process outside that holds the secret in its memory and a descriptor or two."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", STAND_IN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(secret + "\n")
        child.stdin.flush()
        yield {"stand_in": child.pid, "stand_in_address": int(child.stdout.readline())}
    finally:
        child.kill()
        child.communicate()


@asynccontextmanager
async def _engine(orders: Orders) -> AsyncIterator[Engine]:
    store = Store(Path(orders.home)) if orders.home else Store()
    if orders.engine == "docker":
        from caisson_runner.boxes.docker import DockerEngine

        async with DockerEngine(store, host=orders.docker_host or None) as docker:
            yield docker
    else:
        from caisson_runner.boxes.local import LocalEngine

        async with LocalEngine(store) as local:
            yield local


@dataclass(frozen=True, slots=True)
class Outside:
    """What was made outside any box. ``trusted`` is the authority of the world's servers, None without a gate."""

    places: Path
    host: HostSide
    trusted: Path | None


async def _run(orders: Orders, canaries: Canaries, facts: dict[str, Any], outside: Outside) -> None:
    folder = Path(orders.folder) if orders.folder else scenarios_root() / "routes"
    places = outside.places
    routes = [r for r in select(load_register(folder), orders.globs, orders.quick) if orders.engine in r.engines]
    witness = choose(orders.witness)
    if witness.name == "none":
        raise RedTeamError(f"no witness can be had here ({witness.reason}), so nothing would be on record")
    async with contextlib.AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(_engine(orders))
            snapshot = await _snapshot(engine, orders, facts)
        except BoxError as problem:
            tell(absent=str(problem))
            return
        facts |= stack.enter_context(_stand_in(canaries.held.secret))
        await canaries.start()
        stack.push_async_callback(canaries.stop)
        await prove(canaries, outside.host, places, outside.trusted is not None)
        rig = Rig(
            engine, orders.engine, snapshot, witness, canaries, facts, places / "shared", Path(orders.out),
            places / "touched", workdir=snapshot.workdir,
        )  # fmt: skip
        if "gate" in orders.networks:
            await _open_gate(rig, stack, places, outside.trusted)
        tell(say=f"{orders.engine}: witness {witness.name} ({witness.reason})")
        await _all(
            rig, [(route, network) for network in orders.networks for route in routes if network in route.networks]
        )


async def _open_gate(rig: Rig, stack: contextlib.AsyncExitStack, places: Path, trusted: Path | None) -> None:
    if trusted is None:
        rig.no_gate = f"the gate is not installed here: {install('gate')}"
        return
    (places / "gate").mkdir()
    rig.gate = await stack.enter_async_context(open_gate(places / "gate", trusted))


def _certificates(places: Path) -> tuple[ssl.SSLContext | None, Path | None]:
    (places / "world").mkdir(mode=0o700)
    try:
        from caisson_runner.redteam.outside import certificates

        return certificates(places / "world")
    except ImportError:
        return None, None


async def _snapshot(engine: Engine, orders: Orders, facts: dict[str, Any]) -> Snapshot:
    """What the boxes are forked from: a bare one, or the task's."""
    if not orders.task:
        return await engine.snapshot(SnapshotSpec(label="redteam"))
    from caisson_runner.tasks import load_task
    from caisson_runner.tasks.snapshot import parse_bases, snapshot_spec

    task = load_task(orders.task)
    facts["workdir"], facts["fix"] = task.workdir, answers_of(task.solution_dir)
    return await engine.snapshot(snapshot_spec(task, parse_bases(orders.bases)))


def answers_of(folder: Path | None) -> list[str]:
    """Long lines of a task's own solution: in an image they would be the answer."""
    found: dict[str, None] = {}
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        if path.is_file() and path.stat().st_size < _MOST_ANSWER:
            for line in path.read_text("utf-8", "replace").splitlines():
                if len(line.strip()) >= _LONG and not line.lstrip().startswith(("#", "//", "import ", "from ")):
                    found[line.strip()] = None
    return list(found)[:20]


async def _all(rig: Rig, pairs: Sequence[tuple[Route, str]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(route: Route, network: str) -> None:
        async with room:
            tell(outcome=(await rig.perform(route, network)).to_json())

    async with asyncio.TaskGroup() as group:
        for route, network in pairs:
            group.create_task(one(route, network))


if __name__ == "__main__":
    sys.exit(main())
