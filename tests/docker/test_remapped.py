"""A daemon with user namespaces: the box's root is nobody on the host."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from caisson_runner.boxes.engine import Bind, Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
from docker_daemon import dockerd, why_not

pytestmark = [pytest.mark.docker, pytest.mark.root]
FIRST = 508_949


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder everyone may enter, which the remapped root must be able to."""
    folder = Path(tempfile.mkdtemp(prefix="caisson-remapped-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_boxes_of_a_remapping_daemon_belong_to_no_host_user_and_capture_alike(place):
    from caisson_runner.boxes.docker import DockerEngine

    if reason := why_not():
        pytest.skip(reason)
    ranges = {path: f"nobody:{FIRST}:65536\n" for path in ("/etc/subuid", "/etc/subgid") if Path(path).exists()}
    if len(ranges) < 2:
        pytest.skip("/etc/subuid and /etc/subgid do not exist here, so a private copy cannot lie over them")
    store = Store(place / "store")
    (place / "agent").mkdir()
    (place / "agent/run.sh").write_text("id -u > /app/who; rm /app/b; echo err >&2 > /dev/stderr\n")
    digests = []
    with dockerd(place / "dockerd", "--userns-remap=nobody:nogroup", files=ranges) as daemon:
        async with DockerEngine(store, host=daemon.host) as engine, LocalEngine(store) as local:
            snapshot = await engine.snapshot(SnapshotSpec(files={"/app/a": b"1", "/app/b": b"2"}))
            for number, one in enumerate((engine, local)):
                async with one.fork(snapshot, binds=[Bind(place / "agent", "/agent")]) as box:
                    process = await box.start(Command(("/bin/sh", "/agent/run.sh")))
                    assert (await process.wait()).ok
                    sleeper = await box.start(Command(("/bin/sleep", "60")))
                    status = Path(f"/proc/{sleeper.pid}/status").read_text()
                    assert (
                        next(line for line in status.splitlines() if line.startswith("Uid")).split()[1:]
                        == [str(FIRST)] * 4
                    )
                    await sleeper.kill()
                    digests.append((await box.capture(place / f"{number}.tar.zst")).digest)
                async with one.fork(snapshot, state=place / "0.tar.zst") as room:
                    done = await (await room.start(Command(("/bin/sh", "-c", "cat who; echo 2 > who; ls")))).wait()
                    assert done.stdout == b"0\na\nwho\n", done
    assert digests[0] == digests[1]
