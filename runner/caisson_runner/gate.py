"""A run's way out: which policy holds for a task, the gate process all runs share, and one box behind it.

Nothing of `caisson_gate` is imported before a gate is wanted: the base install has not what it needs.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from caisson_runner.boxes import listeners, owner
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Bind, Box, Outside
from caisson_runner.boxes.holder.tree import remove
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store, home
from caisson_runner.errors import CaissonError
from caisson_runner.extras import install

if TYPE_CHECKING:
    from caisson_gate.client import Checked, GateBox, GateProcess

    from caisson_runner.tasks import Task

_OPENS: Final = ("allowlist", "denylist", "record")
_SAYS: Final = (b"network_mode", b"allowed_hosts", b"blocked_hosts", b"blocked_urls")
"""A task.toml with none of these says nothing about the network that could open it."""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the command line says about the network. Without any of it a task's own allow list still counts."""

    policy: Path | None = None
    record: bool = False
    """Keep bodies and flows, so that they can be replayed."""
    replay: Path | None = None
    """A bundle whose recorded answers stand in for the world."""
    resolve: tuple[str, ...] = ()
    """``NAME=ADDRESS[:PORT]``, dialled as it stands."""
    upstream_ca: Path | None = None
    """Whom to trust upstream instead of the host's certificates."""


class BadReplay(CaissonError):
    """What was to be replayed is no bundle with a gate's record."""

    exit_code = 2


class BadPin(CaissonError):
    """A ``--resolve`` that is not NAME=ADDRESS[:PORT]."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The network of a task's boxes: a policy that was checked, and the ports it wants."""

    process: GateProcess
    policy: bytes
    source: str
    checked: Checked
    record: bool
    replay: Path | None

    @property
    def env(self) -> dict[str, str]:
        """For every command of the box."""
        return {**self.process.env, **self.process.placeholders.get(self.policy, {})}

    def binds(self, present: Sequence[str] = ()) -> list[Bind]:
        """The trust material. Below folders that a snapshot may lack only when it has them (``present``)."""
        return [
            Bind(source, target)
            for source, target in self.process.files
            if target.count("/") < _DEEP or target.rpartition("/")[0] in present
        ]


_DEEP: Final = 5
"""A file below /etc/ssl/certs/java is for Java alone, and the folder is where Java is."""


@dataclass(slots=True)
class Way:
    """One box behind the gate, from `Gates.opened`."""

    box: GateBox
    plan: Plan
    folder: Path
    lost: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        """While the gate is needed: GateLost in the body as soon as its process is gone."""
        from caisson_gate.client import GateLost

        task = asyncio.current_task()
        assert task is not None

        def gone(future: asyncio.Future[str]) -> None:
            if not future.cancelled() and not self.lost:
                self.lost = future.result()
                task.cancel()

        future = self.plan.process.lost
        future.add_done_callback(gone)
        try:
            yield
        except asyncio.CancelledError:
            if self.lost and task.uncancel() <= 0:
                raise GateLost(f"{self.lost}; the box had no way out from then on") from None
            raise
        finally:
            future.remove_done_callback(gone)

    async def close(self) -> None:
        """No way out any more; the gate's record is whole."""
        await self.box.close()
        self.summary = self.box.closed


class Gates:
    """The gate of one session: a process that is started when the first run wants it."""

    def __init__(self, options: GateOptions, stack: AsyncExitStack) -> None:
        self.options = options
        self._stack = stack
        self._lock = asyncio.Lock()
        self._process: GateProcess | None = None
        self._built: dict[Path, Path] = {}
        self._plans: dict[tuple[bytes, str], Plan] = {}

    async def plan(self, task: Task) -> Plan | None:
        """What holds for the task; None for a box without network. PolicyError when the policy cannot be taken."""
        wanted = self._policy(task)
        if wanted is None:
            return None
        async with self._lock:
            if self._process is not None and self._process.lost.done():
                self._process = None  # its runs were lost with it; the next ones get a new one
                self._plans.clear()
            if wanted not in self._plans:
                process = await self._start()
                checked = await process.checked(*wanted)
                replay = _recorded(self.options.replay)
                self._plans[wanted] = Plan(process, *wanted, checked, self.options.record, replay)
            return self._plans[wanted]

    def _policy(self, task: Task) -> tuple[bytes, str] | None:
        """A policy's text and where it is from."""
        options = self.options
        if options.policy is not None:
            from caisson_gate.load import load, read

            wanted = read(options.policy), str(options.policy)
            if wanted not in self._plans:
                load(options.policy)  # here, so that a mistake is told before anything is made
            return wanted
        if options.replay is not None:
            kept = _recorded(options.replay)
            assert kept is not None
            return (kept / "policy.toml").read_bytes(), str(kept / "policy.toml")
        file = task.path / "task.toml"
        text = file.read_bytes()
        if not options.record and not any(word in text for word in _SAYS):
            return None
        from caisson_gate.convert import from_harbor
        from caisson_gate.document import toml

        policy = from_harbor(text, str(file)).policy
        if policy.network_mode not in _OPENS or (policy.network_mode == "record" and not options.record):
            return None
        return toml(policy).encode(), str(file)

    async def _start(self) -> GateProcess:
        if self._process is None:
            from caisson_gate.client import GateProcess
            from caisson_gate.resolve import parse_pin

            for pin in self.options.resolve:
                try:
                    parse_pin(pin)
                except ValueError as problem:
                    raise BadPin(f"--resolve: {problem}") from None
            place = home() / "gate"
            place.mkdir(parents=True, exist_ok=True)
            for left in place.iterdir():
                if not owner.alive(left.name):
                    remove(str(left))
            folder = place / f"{owner.mark()}-{secrets.token_hex(4)}"
            options = self.options
            process = GateProcess(folder, run=folder.name, resolve=options.resolve, upstream_ca=options.upstream_ca)
            self._process = await self._stack.enter_async_context(process)
        return self._process

    @asynccontextmanager
    async def opened(
        self, plan: Plan | None, box: Box, run_id: str, place: Callable[[str], Path], phase: str = "agent"
    ) -> AsyncIterator[Way | None]:
        """Open the gate for a box in which nothing runs yet; it is closed when the body is left, by whatever way.

        ``place`` says where a file of the bundle goes. GateLost in the body when the process is gone.
        """
        if plan is None:
            yield None
            return
        from caisson_gate.client import Opening
        from caisson_gate.errors import GateError

        assert isinstance(box, LocalBox)
        folder = place("gate/events.jsonl").parent
        made = await listeners.listen(box, plan.checked.ports)
        try:
            opening = Opening(
                box.id, run_id, plan.policy, plan.source, folder, phase, record=plan.record, replay=plan.replay
            )
            way = Way(await plan.process.open(opening, [(one.about, one.descriptor) for one in made]), plan, folder)
        finally:
            listeners.close(made)
        try:
            async with way.needed():
                yield way
        except BaseException:
            try:
                await asyncio.shield(way.close())
            except GateError:
                pass  # what is raised already says more
            raise
        await way.close()

    async def outside(self, task: Task) -> Outside | None:
        """The way out for the run lines of the task's environment; None where the policy has none for the build."""
        plan = await self.plan(task)
        if plan is None or "build" not in plan.checked.phases:
            return None
        folder = plan.process.folder / f"build-{task.id}-{secrets.token_hex(4)}"
        self._built[task.path] = folder / "events.jsonl"

        def place(name: str) -> Path:
            folder.mkdir()
            return folder / Path(name).name

        def enter(box: Box) -> AbstractAsyncContextManager[Way | None]:
            return self.opened(plan, box, f"build-{task.id}", place, "build")

        return Outside(plan.binds(), plan.env, enter)

    def build_events(self, task: Task) -> Path | None:
        """What the task's environment fetched when it was built in this session."""
        path = self._built.get(task.path)
        return path if path is not None and path.is_file() else None


def probe() -> tuple[bool, str]:
    """Whether boxes can have a gate here, tried with a box; and what there is, or what to do."""
    from importlib.metadata import version
    from importlib.util import find_spec

    if missing := [name for name in ("mitmproxy", "dnslib") if find_spec(name) is None]:
        return False, f"{' and '.join(missing)} not installed; run: {install('gate')}"

    async def attempt() -> None:
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            async with LocalEngine(Store(Path(place))) as engine:
                snapshot = await engine.snapshot(SnapshotSpec())
                async with engine.fork(snapshot, network="gate") as box:
                    listeners.close(await listeners.listen(box, (80, 443)))

    try:
        asyncio.run(attempt())
    except CaissonError as problem:
        return False, str(problem)
    return True, f"mitmproxy {version('mitmproxy')}, dnslib {version('dnslib')}; a box's network can be made"


def _recorded(bundle: Path | None) -> Path | None:
    """The gate's folder of a bundle to replay."""
    if bundle is None:
        return None
    folder = bundle / "gate" if (bundle / "gate").is_dir() else bundle
    if not (folder / "events.jsonl").is_file() or not (folder / "policy.toml").is_file():
        raise BadReplay(f"{bundle}: holds no gate/events.jsonl; make it with --record")
    return folder
