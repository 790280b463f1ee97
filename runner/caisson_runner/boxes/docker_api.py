"""The Docker daemon as the engine uses it: the SDK's blocking calls in threads, its errors in our words."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from caisson_runner.boxes import docker_image
from caisson_runner.boxes.errors import BoxStartFailed, DockerUnavailable, ToolMissing
from caisson_runner.boxes.store import Snapshot, Store
from caisson_runner.extras import install

if TYPE_CHECKING:
    import docker

_T = TypeVar("_T")
_CALL_S: Final = 120
_GONE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the daemon says it is."""

    version: str
    driver: str
    backing: str
    """File system below the driver; a size limit for containers exists on xfs alone."""
    systemd_cgroups: bool
    user_namespaces: bool


class Docker:
    """One daemon. Calls may come from several boxes at once."""

    def __init__(self, host: str | None) -> None:
        """``host`` as in DOCKER_HOST; None takes the environment's, else the default socket."""
        try:
            import docker
        except ImportError:
            raise ToolMissing(f"the docker SDK is not installed; run: {install('docker')}") from None
        self.host = host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        environment = {**os.environ, "DOCKER_HOST": self.host}
        try:
            self._client: docker.DockerClient = docker.from_env(environment=environment, timeout=_CALL_S)
            self._client.ping()
        except Exception as problem:
            raise DockerUnavailable(
                f"no Docker daemon answers at {self.host} ({_brief(problem)}); start dockerd, or give --docker-host"
            ) from None

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    async def call(self, what: str, work: Callable[[docker.DockerClient], _T]) -> _T:
        """One piece of work in a thread; what it raises becomes BoxStartFailed with one line."""
        try:
            return await asyncio.to_thread(work, self._client)
        except OSError as problem:  # the SDK's errors are requests' and so OSErrors too
            raise BoxStartFailed(f"docker could not {what}: {_brief(problem)}") from problem
        except Exception as problem:
            if type(problem).__module__.partition(".")[0] in ("docker", "requests", "urllib3"):
                raise BoxStartFailed(f"docker could not {what}: {_brief(problem)}") from problem
            raise

    async def describe(self) -> Daemon:
        """Ask the daemon what it is."""
        found: dict[str, Any] = await self.call("say what it is", lambda client: client.info())
        status = {str(key): str(value) for key, value in found.get("DriverStatus") or ()}
        options = [str(option) for option in found.get("SecurityOptions") or ()]
        return Daemon(
            str(found.get("ServerVersion", "")),
            str(found.get("Driver", "")),
            status.get("Backing Filesystem", ""),
            found.get("CgroupDriver") == "systemd",
            any(option.startswith("name=userns") for option in options),
        )

    async def has_image(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot is an image already."""
        import docker.errors

        def look(client: docker.DockerClient) -> bool:
            try:
                client.images.get(docker_image.tag(snapshot))
            except docker.errors.ImageNotFound:
                return False
            return True

        return await self.call("look for an image", look)

    async def make_image(self, store: Store, snapshot: Snapshot) -> None:
        """Hand the snapshot's layers over."""

        def load(client: docker.DockerClient) -> None:
            with tempfile.TemporaryFile(dir=store.home) as file:
                docker_image.archive(store, snapshot, file)
                file.seek(0)
                client.images.load(file)

        await self.call("take the snapshot as an image", load)

    async def create(self, options: Mapping[str, Any]) -> tuple[str, Path]:
        """A container that does not run yet: its id, and the folder of its writable layer."""

        def make(client: docker.DockerClient) -> tuple[str, Path]:
            container = client.containers.create(**options)
            data = container.attrs["GraphDriver"].get("Data") or {}
            return str(container.id), Path(data.get("UpperDir") or "/nonexistent")

        return await self.call("make a container", make)

    async def start(self, container: str) -> int:
        """Start it; the host pid of its init."""

        def begin(client: docker.DockerClient) -> int:
            client.api.start(container)
            return int(client.api.inspect_container(container)["State"]["Pid"])

        return await self.call("start a container", begin)

    async def remove(self, container: str) -> None:
        """Kill and remove it, and wait until nothing is left of it."""
        import docker.errors

        def end(client: docker.DockerClient) -> None:
            deadline = time.monotonic() + _GONE_S
            while time.monotonic() < deadline:
                try:
                    client.api.remove_container(container, force=True, v=True)
                except docker.errors.NotFound:
                    return
                except docker.errors.APIError as problem:
                    if problem.status_code != 409:  # it is being removed
                        raise
                time.sleep(0.02)

        await self.call("remove a container", end)

    async def labelled(self, label: str) -> list[tuple[str, Mapping[str, str]]]:
        """(id, labels) of every container that has the label, running or not."""

        def look(client: docker.DockerClient) -> list[tuple[str, Mapping[str, str]]]:
            found = client.api.containers(all=True, filters={"label": label})
            return [(str(one["Id"]), dict(one.get("Labels") or {})) for one in found]

        return await self.call("list containers", look)

    async def forget_images(self, store: Store) -> None:
        """Remove images of this store's snapshots that were pruned."""
        import docker.errors

        kept = {docker_image.tag(snapshot) for snapshot in store.list()}

        def clear(client: docker.DockerClient) -> None:
            label = f"{docker_image.LABEL_STORE}={store.home}"
            for image in client.api.images(filters={"label": label}):
                for name in image.get("RepoTags") or ():
                    if name not in kept:
                        try:
                            client.images.remove(name)
                        except docker.errors.APIError:
                            continue  # a container stands on it

        await self.call("list images", clear)


def _brief(problem: BaseException) -> str:
    """An SDK error in one bounded line: the daemon's own explanation where there is one."""
    text = str(getattr(problem, "explanation", "") or problem)
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:300]
