"""A Docker daemon, a witness daemon, and an image made of this host's busybox, all of the tests' own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.boxes.store import Store

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "witness")]
from docker_daemon import IMAGE, Dockerd, dockerd, why_not  # noqa: E402
from witness_daemon import Daemon  # noqa: E402

BUSYBOX = Path("/bin/busybox")


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    if reason := why_not():
        pytest.skip(reason)
    before = traces()
    with dockerd(tmp_path_factory.mktemp("dockerd")) as running:
        yield running
    assert traces() == before
    assert str(running.home) not in Path("/proc/self/mounts").read_text()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{running.cgroup_parent}"))


def traces() -> dict[str, object]:
    """What a daemon is known to leave on a host, or to change there."""
    found: dict[str, object] = {path: Path(path).stat().st_mode for path in ("/dev/null", "/dev/zero")}
    for folder in ("/etc/docker", "/run/docker", "/run/containerd", "/var/lib/docker", "/var/lib/containerd"):
        found[folder] = sorted(Path(folder).iterdir()) if Path(folder).is_dir() else None
    for command in (["iptables", "-S", "FORWARD"], ["iptables", "-t", "nat", "-S"]):
        try:
            found[command[0] + command[-1]] = subprocess.run(command, capture_output=True).stdout
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def client(daemon: Dockerd) -> Iterator[Any]:
    """The SDK's, with the busybox image loaded."""
    import docker

    if not BUSYBOX.exists():
        pytest.skip("busybox is not installed (apt-get install busybox-static)")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("bin/busybox")
        info.size, info.mode = BUSYBOX.stat().st_size, 0o755
        with BUSYBOX.open("rb") as source:
            tar.addfile(info, source)
    client = docker.DockerClient(base_url=daemon.host)
    name, _, version = IMAGE.partition(":")
    client.api.import_image_from_data(archive.getvalue(), repository=name, tag=version)
    yield client
    for container in client.containers.list(all=True):
        container.remove(force=True)
    client.close()


@pytest.fixture(scope="session")
def tracerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A witness daemon; skipped where no programs can be loaded."""
    from caisson_tracerd.loader import BTF
    from caisson_tracerd.pins import SYSTEM_PYTHON

    if os.geteuid() != 0 or not BTF.exists() or os.system(f"{SYSTEM_PYTHON} -c 'import bcc' 2>/dev/null"):
        pytest.skip("BPF programs need root, kernel BTF and python3-bpfcc")
    running = Daemon(tmp_path_factory.mktemp("tracerd"))
    running.start()
    yield running
    running.stop()
    running.unload()


@pytest.fixture
async def engine(daemon: Dockerd, store: Store) -> AsyncIterator[Any]:
    from caisson_runner.boxes.docker import DockerEngine

    async with DockerEngine(store, host=daemon.host) as engine:
        yield engine
    assert list((store.home / "boxes").iterdir()) == [], "a box was left behind"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))
