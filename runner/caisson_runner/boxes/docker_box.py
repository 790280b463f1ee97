"""One fork of the docker engine: a container, and commands that enter it through our own gate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caisson_runner.boxes import owner
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.docker_api import Docker
from caisson_runner.boxes.engine import Admit, Bind, BoxLimits, Command, Network, Outcome
from caisson_runner.boxes.errors import BoxStartFailed, DockerUnavailable
from caisson_runner.boxes.holder.tree import remove
from caisson_runner.boxes.process import LocalProcess
from caisson_runner.boxes.store import Snapshot, Store

if TYPE_CHECKING:
    from caisson_tracerd.cgroup import Cgroup


class DockerBox(LocalBox):
    """See `engine.Box`. Made by `DockerEngine.fork` only.

    The holder of the local engine adopts the container's init, so launching, signals, files and capture are the local
    box's own code. What is Docker's: namespaces, mounts, the cgroup below ours, limits, and the container's removal.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        box_id: str | None,
        limits: BoxLimits,
        binds: tuple[Bind, ...],
        docker: Docker,
        network: Network = "none",
    ) -> None:
        super().__init__(store, snapshot, box_id, limits, binds, network)
        self.container = ""
        self.parent: Cgroup | None = None
        """The cgroup made beforehand, the witness's or ours; the container's own lies below it."""
        self._docker = docker
        self._made: list[tuple[Path, Path]] = []
        """Version 1 folders the daemon makes on the way to the container's and leaves there; each with its mount."""

    def make_parent(self, given: Path | None, limits_too: bool) -> str:
        """Make or take the cgroup the container will be started below; its path as ``--cgroup-parent`` wants it."""
        from caisson_tracerd.cgroup import Cgroup, Limits, v2_root

        if given is not None:
            self.parent = Cgroup.open(given)
        else:
            limits = Limits(self.limits.memory_bytes, self.limits.pids, self.limits.cpu_millis)
            self.parent, self._ours = Cgroup.create(self.id, limits if limits_too else Limits()), True
        owner.write(self.folder, self.snapshot.id, str(self.parent.path) if self._ours else "")
        root = v2_root()
        if root is None or not self.parent.path.is_relative_to(root):
            raise BoxStartFailed(f"cgroup {self.parent.path} is not below the version 2 hierarchy; give another")
        below = self.parent.path.relative_to(root)
        self._made = [(place / below, place) for place in hierarchies().values() if place / below not in self.parent.v1]
        return f"/{below}"

    def created(self, container: str, upper: Path) -> None:
        """The container exists; its writable layer is on disk at ``upper``."""
        self.container = container
        self._disk = upper
        if not upper.is_dir():
            raise DockerUnavailable(
                f"the writable layer of container {container[:12]} is not on this machine; "
                "the docker engine needs a daemon on the same host with the overlay2 driver"
            )
        self._owner = upper.stat().st_uid  # 0, or what the daemon remaps it to

    def find_cgroup(self, init: int) -> None:
        """Where the daemon put the container. DockerUnavailable when it is another machine's."""
        from caisson_tracerd.cgroup import Cgroup, v2_root

        assert self.parent is not None
        try:
            lines = Path(f"/proc/{init}/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        if not any(self.container in line for line in lines):
            raise DockerUnavailable(
                f"container {self.container[:12]} does not run on this machine as process {init}; "
                "the docker engine needs a daemon on the same host, in the same pid namespace"
            )
        root, mounts = v2_root(), hierarchies()
        v2, places = self.parent.path, list[Path]()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers and root is not None and (root / path[1:]).is_relative_to(self.parent.path):
                v2 = root / path[1:]
            elif controllers and self.container in path:
                mount = mounts.get(frozenset(controllers.split(",")))
                if mount is not None and mount / path[1:] not in places:
                    places.append(mount / path[1:])
        opened = Cgroup.open(v2)
        self.cgroup = Cgroup(opened.path, opened.id, (), tuple(sorted(places)))
        self._counted = self.cgroup.stats()

    def leftovers(self) -> list[str]:
        """Cgroup folders that stay when the daemon has removed the container."""
        if self.parent is None:
            return []
        ours = (self.parent.path, *self.parent.v1) if self._ours else ()
        return [str(place) for place in (*(place for place, _ in self._made), *ours)]

    async def start(self, command: Command, *, admit: Admit | None = None, wrap: Sequence[str] = ()) -> LocalProcess:
        """See `LocalBox.start`. The process is in the container's cgroup before its gate opens, in every hierarchy."""

        async def enter(pid: int) -> None:
            if self._own_cgroup() is None and self.cgroup is not None:
                await asyncio.to_thread(self.cgroup.add, pid)
            if admit is not None:
                await admit(pid)

        return await super().start(command, admit=enter, wrap=wrap)

    async def freeze(self) -> None:
        """See `LocalBox.freeze`. By the cgroup made beforehand, so that whoever made it sees the box stand still."""
        if not self._frozen and self.parent is not None:
            await asyncio.to_thread(self.parent.freeze)
            self._frozen = True

    async def thaw(self) -> None:
        """See `LocalBox.thaw`."""
        if self._frozen and self.parent is not None:
            self.parent.thaw()
            self._frozen = False

    async def drop(self) -> None:
        """Kill everything, remove container, cgroup and folder. Idempotent."""
        if self._dropped:
            return
        self._stop_all(Outcome.KILLED)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._frozen and self.parent is not None:
            try:
                self.parent.thaw()
            except Exception:  # noqa: S110 - it is gone already; the daemon kills frozen processes too
                pass
        if self.holder is not None:
            await self.holder.close()
        self._dropped = True
        try:
            if self.container:
                await self._docker.remove(self.container)
        finally:
            for process in self._processes:
                process.close()
            await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        for place, mount in self._made:
            for folder in (place, *place.parents):
                try:
                    if folder != mount:
                        folder.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    break  # another box lies below it
                if folder == mount:
                    break
        if self.parent is not None and self._ours:
            self.parent.remove()
        remove(str(self.folder))


def hierarchies() -> dict[frozenset[str], Path]:
    """Mount point of each version 1 hierarchy by its controllers, as /proc/PID/cgroup names them."""
    found: dict[frozenset[str], Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            words = {
                word for word in options.split(",") if word not in ("rw", "ro", "xattr", "noprefix", "clone_children")
            }
            names = frozenset(word for word in words if "=" not in word or word.startswith("name="))
            found[names] = Path(left.split(" ")[4])
    return found
