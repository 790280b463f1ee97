"""The daemon: adopt or load the pins, prove that they see, then answer on one socket per user."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caisson_tracerd import pins, selftest
from caisson_tracerd.box import Note
from caisson_tracerd.config import Endpoint
from caisson_tracerd.errors import BpfError, PinsError, PinsOlder, ServeError, TracerdError, UsageError
from caisson_tracerd.layout import Layout
from caisson_tracerd.ledger import Ledger
from caisson_tracerd.log import LOG, Priority
from caisson_tracerd.notify import Pulse, notify
from caisson_tracerd.registry import Registry
from caisson_tracerd.source import API

if TYPE_CHECKING:
    from caisson_tracerd.listen import Tcp


@dataclass(frozen=True, slots=True)
class Options:
    """What ``tracerd serve`` was asked for."""

    layout: Layout
    allow: tuple[int, ...] = ()
    ring_bytes: int = 4 << 20
    unload_on_exit: bool = False
    metrics: Endpoint | None = None
    tcp: Tcp | None = None


def uid_of(name: str) -> int:
    """A user name or number as a uid; UsageError when there is no such user."""
    try:
        return pwd.getpwuid(int(name)).pw_uid if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"there is no user {name!r} on this machine") from None


def known_uids(names: tuple[str, ...]) -> set[int]:
    """Uids of a configuration's users. One who has left the machine must not keep the witness from starting."""
    found = set()
    for name in names:
        try:
            found.add(uid_of(name))
        except UsageError:
            LOG.say(Priority.WARNING, "allowed user is unknown and gets no socket", user=name)
    return found


def say(text: str) -> None:
    LOG.say(Priority.NOTICE, text)


def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT. TracerdError when it cannot begin."""
    pins.require_root()
    _raise_open_files()
    os.umask(0o022)  # cgroups of plain users must be reachable for them; what is private has its own mode
    layout = options.layout
    for folder in (layout.run_dir, layout.state_dir):
        _make_folder(folder, 0o755 if folder == layout.run_dir else 0o700)
    with lock(layout):
        try:
            asyncio.run(_serve(options))
        finally:
            if options.unload_on_exit:
                _remove_folders(layout)


async def _serve(options: Options) -> None:
    layout = options.layout
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # What answers callers is read (gRPC alone takes as long as all the rest) while there is something to wait for.
    answering = loop.run_in_executor(None, import_module, "caisson_tracerd.listen")
    try:
        async with contextlib.AsyncExitStack() as stack:
            async with selftest.known_child(layout.run_dir.resolve()) as child:
                manifest = _adopt_or_load(layout)
                try:
                    registry = Registry(layout, options.ring_bytes)
                except BpfError as problem:
                    raise PinsError(
                        f"pins under {layout.pins} cannot be adopted ({problem}); run: tracerd unload"
                    ) from None
                stack.push_async_callback(registry.close)
                for line in registry.adopt_all():
                    say(line)
                for line in await registry.settle():
                    say(line)
                await selftest.run(registry, child)
            await answering
            async with observed(options, registry, manifest), _servers(options, registry, manifest):
                say(f"ready: {manifest['tier']} tier, sockets below {layout.run_dir}")
                notify("READY=1")
                await stop.wait()
                notify("STOPPING=1", "STATUS=ending; pins stay")
            if options.unload_on_exit:
                await registry.drop_all()
    finally:
        if options.unload_on_exit:
            pins.unload(layout)
            say("unloaded")
        elif pins.read_manifest(layout) is not None:
            say(f"ended; the pins under {layout.pins} stay and record on. Remove them with: tracerd unload")


def _adopt_or_load(layout: Layout) -> dict[str, Any]:
    """Pins of an earlier daemon when they fit; pins of another version are replaced unless boxes depend on them."""
    try:
        manifest = pins.check(layout)
    except PinsError as problem:
        waiting = open_boxes(layout)
        if waiting and isinstance(problem, PinsOlder):
            LOG.say(Priority.NOTICE, "programs of another build stay, boxes depend on them", boxes=len(waiting))
            return problem.manifest
        if waiting:
            raise PinsError(f"{problem} (boxes are open: {', '.join(waiting)})") from None
        say(f"{problem}; no box is open, so they are loaded anew")
        pins.unload(layout)
        manifest = None
    return manifest if manifest is not None else pins.load(layout)


def open_boxes(layout: Layout) -> list[str]:
    """Ids of boxes that an earlier daemon left recording in this boot."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    found = []
    for folder in sorted(layout.boxes_dir.glob("*/*")):
        with contextlib.suppress(TracerdError):
            note = Note.read(folder)
            if not note.sealed and note.boot_id == boot_id and Path(note.cgroup).is_dir():
                found.append(note.id)
    return found


@contextlib.asynccontextmanager
async def _servers(options: Options, registry: Registry, manifest: dict[str, Any]) -> AsyncIterator[None]:
    from caisson_proto import tracerd_pb2 as pb

    from caisson_tracerd.listen import listening
    from caisson_tracerd.service import boot_wall_ns, package_version

    info = pb.GetInfoResponse(
        version=package_version(),
        api=API,
        tier=manifest["tier"],
        hooks=manifest["hooks"],
        manifest_json=json.dumps(manifest, sort_keys=True),
        boot_wall_ns=boot_wall_ns(),
    )
    async with listening(options.layout, registry, {0, *options.allow}, info, options.tcp):
        yield


@contextlib.contextmanager
def lock(layout: Layout) -> Iterator[None]:
    """The right to change pins and sockets of this run folder."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ServeError(f"another tracerd serves from {layout.run_dir}; stop it first, or use --run-dir") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _raise_open_files() -> None:
    """A box holds three descriptors, a follower one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    except OSError as problem:
        raise ServeError(f"folder {folder} cannot be made: {problem.strerror}") from None


def _remove_folders(layout: Layout) -> None:
    """What a daemon made for itself and nobody uses any more."""
    layout.lock.unlink(missing_ok=True)
    (layout.run_dir / "starts").unlink(missing_ok=True)
    steps: list[Callable[[], None]] = [layout.boxes_dir.rmdir, layout.state_dir.rmdir, layout.run_dir.rmdir]
    for step in steps:
        with contextlib.suppress(OSError):
            step()


@contextlib.asynccontextmanager
async def observed(options: Options, registry: Registry, manifest: dict[str, Any]) -> AsyncIterator[None]:
    """Log, watchdog and metrics, from the end of the self-test on."""
    layout = options.layout
    ledger = Ledger()
    ledger.took_over(registry.all())
    registry.observer = ledger

    def status() -> str:
        boxes = registry.all()
        recording = sum(not box.note.sealed for box in boxes)
        return f"{manifest['tier']} tier; {recording} boxes record, {len(boxes) - recording} are sealed"

    registry.after_each_sweep(Pulse(lambda: pins.illness(layout, manifest), status).beat)
    starts = _count_start(layout)
    if options.metrics is None:
        yield
        return
    from caisson_tracerd.metrics import Collector, served
    from caisson_tracerd.service import package_version

    about = {"version": package_version(), "api": str(API), "tier": manifest["tier"]}
    async with served(options.metrics, Collector(registry, ledger, about, starts)) as where:
        LOG.say(Priority.NOTICE, "metrics are served", address=where)
        yield


def _count_start(layout: Layout) -> int:
    """Starts since the run folder was made, this one included."""
    path = layout.run_dir / "starts"
    try:
        number = int(path.read_text()) + 1
    except (OSError, ValueError):
        number = 1
    path.write_text(f"{number}\n")
    return number
