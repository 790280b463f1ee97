"""The docker engine: snapshot = image, fork = container, commands through our own launcher.

The daemon makes the box (namespaces, mounts, cgroup below the one made beforehand, limits) and holds an init of ours in
it. Commands do not come in by ``docker exec`` but as in the local engine, by a launcher that joins the container's
namespaces and waits at a gate; why is said in ``docs/decisions/0040-docker-through-our-gate.md``.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from caisson_runner.boxes import docker_image, owner, seccomp, snapshots
from caisson_runner.boxes.docker_api import Daemon, Docker
from caisson_runner.boxes.docker_box import DockerBox
from caisson_runner.boxes.engine import DEFAULT_ENV, Bind, BoxLimits, Network, Outside
from caisson_runner.boxes.errors import (
    BoxStartFailed,
    DiskFull,
    DockerUnavailable,
    RequestError,
    StateInvalid,
    StateTooLarge,
)
from caisson_runner.boxes.holder.main import INIT
from caisson_runner.boxes.holder.state import PROBLEMS, members, unpack
from caisson_runner.boxes.keeper import Holder, Keeper
from caisson_runner.boxes.local import refusal, uncancelled
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store

LABEL_OWNER: Final = "caisson.owner"
LABEL_NAMESPACE: Final = "caisson.pidns"
"""In which pid namespace the owner's number counts; nobody else can tell whether it lives."""
LABEL_BOX: Final = "caisson.box"
LABEL_UID: Final = "caisson.uid"
"""Whose container it is: tracerd lets this user attach to it."""
_MIN_SHM: Final = 1 << 16
_OVERLAY: Final = Path("/sys/module/overlay/parameters")


class DockerEngine:
    """See `engine.Engine`. Needs root on the daemon's own host, and the overlay2 storage driver."""

    name = "docker"

    def __init__(self, store: Store | None = None, *, host: str | None = None, allow: Collection[str] = ()) -> None:
        """``host`` as in DOCKER_HOST; ``allow`` names system call groups of `seccomp.REASONS`."""
        if os.geteuid() != 0:
            raise DockerUnavailable(
                "the docker engine needs root: it enters containers and reads their layers; "
                "run as root, or use --engine local, which needs none"
            )
        self.store = store or Store()
        self._allow = tuple(allow)
        self._host = host
        self._docker: Docker | None = None
        self._daemon: Daemon | None = None
        self._keeper: Keeper | None = None
        self._images: set[str] = set()
        self._making = asyncio.Lock()

    async def __aenter__(self) -> DockerEngine:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the keeper and the connections. Boxes that are still held keep their holders until they are dropped."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._docker is not None:
            self._docker.close()
            self._docker = None

    async def _start(self) -> tuple[Docker, Daemon, Keeper]:
        if self._docker is None or self._daemon is None or self._keeper is None:
            if platform.machine() != "x86_64":
                raise DockerUnavailable(f"boxes run on x86_64 only so far, this is {platform.machine()}")
            docker = await asyncio.to_thread(Docker, self._host)
            daemon = await docker.describe()
            _check(daemon)
            await self._sweep(docker)
            await asyncio.to_thread(owner.sweep, self.store.home)
            await docker.forget_images(self.store)
            self._docker, self._daemon = docker, daemon
            self._keeper = Keeper(seccomp.build(self._allow), self.store.owner)
            _write_once(self._file("init"), INIT, 0o111)  # whoever executes what it may not read cannot be traced
            _write_once(self._file("empty"), b"", 0o644)
        return self._docker, self._daemon, self._keeper

    def _file(self, name: str) -> Path:
        return self.store.home / "docker" / name

    async def _sweep(self, docker: Docker) -> None:
        """Containers of runners that are gone. (Those that ran ended with their runner; these never came to run.)"""
        for container, labels in await docker.labelled(LABEL_OWNER):
            mine = labels.get(LABEL_UID) == str(os.getuid()) and labels.get(LABEL_NAMESPACE) == _pid_namespace()
            if mine and not owner.alive(labels.get(LABEL_OWNER, "")):
                await docker.remove(container)

    async def snapshot(self, spec: SnapshotSpec, outside: Outside | None = None) -> Snapshot:
        """See `snapshots.build`. The same spec gives the same id as with the local engine."""
        made = await snapshots.build(self.store, spec, self.fork, outside)
        await self._image(made)
        return made

    async def _image(self, snapshot: Snapshot) -> None:
        docker, _, _ = await self._start()
        async with self._making:
            if snapshot.id in self._images:
                return
            await asyncio.to_thread(self.store.verify, snapshot)
            if not await docker.has_image(snapshot):
                await docker.make_image(self.store, snapshot)
            self._images.add(snapshot.id)

    @asynccontextmanager
    async def fork(
        self,
        snapshot: Snapshot,
        *,
        box_id: str | None = None,
        limits: BoxLimits = BoxLimits(),  # noqa: B008 - a frozen value
        state: Path | bytes | None = None,
        restore: Sequence[str] = (),
        binds: Sequence[Bind] = (),
        network: Network = "none",
        cgroup: Path | None = None,
    ) -> AsyncIterator[DockerBox]:
        """A fresh container. Leaving the context, by whatever way, removes it; see `LocalEngine.fork`."""
        docker, daemon, keeper = await self._start()
        await self._image(snapshot)
        box = DockerBox(self.store, snapshot, box_id, limits, tuple(binds), docker, network)
        try:
            parent = await asyncio.to_thread(box.make_parent, cgroup, daemon.systemd_cgroups)
            options = self._options(box, "" if daemon.systemd_cgroups else parent, daemon)
            await uncancelled(_create(docker, box, options))
            if state is not None:
                await asyncio.to_thread(fill, state, box._disk, limits, restore)
            init = await uncancelled(docker.start(box.container))
            if not init:
                raise BoxStartFailed(f"container {box.container[:12]} ended at once; see the log of the docker daemon")
            box.find_cgroup(init)
            box.holder, answer = await self._hold(keeper, box, init)
            if "up" not in answer:
                raise refusal(answer, limits)
            box.opened(init, True)
            yield box
        finally:
            await uncancelled(box.drop())

    async def _hold(self, keeper: Keeper, box: DockerBox, init: int) -> tuple[Holder, dict[str, Any]]:
        hidden = ["/etc/resolv.conf", "/etc/hosts", "/etc/hostname", docker_image.INIT]
        hidden += [bind.target for bind in box.binds]
        spec = {
            "adopt": {"init": init, "upper": str(box._disk), "hidden": hidden},
            "disk": str(box.folder),
            "cleanup": box.leftovers(),
            "restore": [],
        }
        ours, theirs = socket.socketpair()
        with theirs:
            holder = box.holder = Holder(ours, box.lost)
            keeper.fork(spec, (theirs.fileno(),))
        return holder, await holder.up

    def _shown(self, bind: Bind) -> Any:
        """A host file, or a folder through an overlay: on its unix sockets and named pipes nobody then listens, and
        locks and watches on its files are the box's own.

        The overlay is a volume of the daemon's that goes with the container. Two layers, because the kernel wants them
        where none is written to; the other is an empty folder of ours.
        """
        from docker.types import DriverConfig, Mount

        source = bind.source.resolve()
        if source.is_file():
            return Mount(bind.target, str(source), "bind", read_only=True)
        if not source.is_dir():
            raise RequestError(f"{bind.source}: only files and folders can be shown in a box")
        if any(char in str(source) for char in ",:\\"):
            raise RequestError(
                f"{bind.source}: a folder whose path holds a comma, colon or backslash cannot be shown here"
            )
        self._file("nothing").mkdir(exist_ok=True)
        options = {
            "type": "overlay",
            "device": "overlay",
            "o": f"ro,nosuid,nodev,lowerdir={source}:{self._file('nothing')}",
        }
        return Mount(bind.target, None, "volume", no_copy=True, driver_config=DriverConfig("local", options))

    def _options(self, box: DockerBox, parent: str, daemon: Daemon) -> dict[str, Any]:
        """What the container is made with, for ``containers.create`` of the SDK."""
        from docker.types import LogConfig, Mount, Ulimit

        limits = box.limits

        def mount(source: Path, target: str) -> Mount:
            return Mount(target, str(source.absolute()), "bind", read_only=True)

        mounts = [mount(self._file("init"), docker_image.INIT), mount(self._file("empty"), "/etc/resolv.conf")]
        if box.snapshot.host_usr:
            mounts += [self._shown(Bind(source, target)) for target, source in docker_image.host_usr().items()]
        mounts += [self._shown(bind) for bind in box.binds]
        options: dict[str, Any] = {
            "image": docker_image.tag(box.snapshot),
            "name": f"caisson-{box.id}-{owner.mark().rpartition('-')[0].rpartition('-')[2]}",
            "hostname": "box",
            "environment": {**DEFAULT_ENV, **box.snapshot.env},
            "labels": {
                LABEL_OWNER: owner.mark(),
                LABEL_NAMESPACE: _pid_namespace(),
                LABEL_BOX: box.id,
                LABEL_UID: str(os.getuid()),
            },
            "network_mode": "none",
            "auto_remove": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges", f"seccomp={json.dumps(seccomp.profile(self._allow))}"],
            "log_config": LogConfig(type="none"),
            "mounts": mounts,
            "ipc_mode": "private",
            "shm_size": max(_MIN_SHM, limits.disk_bytes or BoxLimits().disk_bytes),
            "oom_score_adj": 500,
            "cgroupns": "private",
            "ulimits": [Ulimit(name="core", soft=0, hard=0)],
        }
        if limits.files:
            options["ulimits"].append(Ulimit(name="nofile", soft=limits.files, hard=limits.files))
        if limits.memory_bytes:
            options["mem_limit"] = options["memswap_limit"] = limits.memory_bytes
        if limits.pids:
            options["pids_limit"] = limits.pids
        if limits.cpu_millis:
            options["nano_cpus"] = limits.cpu_millis * 1_000_000
        if parent:
            options["cgroup_parent"] = parent
        if daemon.backing == "xfs" and limits.disk_bytes:
            options["storage_opt"] = {"size": str(limits.disk_bytes)}
        return options


async def _create(docker: Docker, box: DockerBox, options: dict[str, Any]) -> None:
    """One step, also when the caller is cancelled in it: a container that exists is known to its box."""
    box.created(*await docker.create(options))


def _check(daemon: Daemon) -> None:
    if daemon.driver != "overlay2":
        raise DockerUnavailable(
            f"docker's storage driver is {daemon.driver or 'unknown'}; the docker engine reads final states from "
            'overlay2 layers: set "storage-driver": "overlay2"'
        )
    for name in ("redirect_dir", "metacopy"):
        try:
            on = (_OVERLAY / name).read_text().strip() == "Y"
        except OSError:
            on = False
        if on:
            raise DockerUnavailable(
                f"overlay's {name} is on by default on this host, so layers do not hold whole files; "
                f"run: echo N > {_OVERLAY / name}, and restart docker"
            )


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _write_once(path: Path, data: bytes, mode: int) -> None:
    """A file shown in containers; renamed into its place, because the one there may be being executed."""
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.chmod(mode)
    part.rename(path)


def fill(state: Path | bytes, upper: Path, limits: BoxLimits, restore: Sequence[str]) -> None:
    """Unpack a captured state into the writable layer of a container that does not run yet. Blocking.

    The layer lies on the host's disk and no file system keeps it small, so its size is added up first.
    """
    import io

    import zstandard

    def opened() -> Any:
        if isinstance(state, bytes):
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(state), read_across_frames=True)
        return zstandard.open(state, "rb")

    owned_by = upper.stat().st_uid
    without = [os.fsencode(path).strip(b"/") for path in restore]
    try:
        size = entries = 0
        with opened() as stream:
            for _, info, _ in members(stream):
                size, entries = size + info.size, entries + 1
                if (limits.disk_bytes and size > limits.disk_bytes) or (limits.inodes and entries > limits.inodes):
                    raise StateTooLarge(
                        f"the state does not fit into {limits.disk_bytes} bytes and {limits.inodes} files"
                    )
        descriptor = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with opened() as stream:
                unpack(stream, descriptor, False, owned_by, without)
        finally:
            os.close(descriptor)
    except (*PROBLEMS, zstandard.ZstdError, EOFError, ValueError) as problem:
        raise StateInvalid(f"the state could not be unpacked: {problem}") from problem
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"box: {problem.strerror}; its limits are {limits.disk_bytes} bytes and {limits.inodes} files"
            ) from problem
        raise BoxStartFailed(f"the state could not be unpacked: {problem.strerror}") from problem
