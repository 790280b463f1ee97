"""Snapshots: what goes in, that nothing changes them, and what is done with archives that lie."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from caisson_runner.boxes.errors import (
    RequestError,
    RootfsRefused,
    SnapshotBuildFailed,
    SnapshotChanged,
    SnapshotInUse,
    SnapshotNotFound,
)
from caisson_runner.boxes.store import SnapshotSpec, Store


@pytest.fixture
def fresh(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


async def test_same_content_is_the_same_snapshot(engine, store, tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_text("a")
    one = await engine.snapshot(SnapshotSpec(files={"/app": tmp_path / "tree"}))
    two = await engine.snapshot(SnapshotSpec(files={"/app/a": b"a"}))
    assert one.layers[0] == two.layers[0]
    (tmp_path / "tree/a").write_text("b")
    three = await engine.snapshot(SnapshotSpec(files={"/app": tmp_path / "tree"}))
    assert three.id != one.id
    assert (await engine.snapshot(SnapshotSpec(files={"/app/a": b"a"}))).id == two.id


async def test_run_lines_become_a_layer_with_env_and_workdir(engine, sh):
    spec = SnapshotSpec(
        files={"/work/old": b"old"},
        env={"MODE": "test"},
        workdir="/work",
        run=(
            "echo $MODE > built; rm old",
            "mkdir -p /usr/local/bin; printf '#!/bin/sh\necho tool' > /usr/local/bin/t; chmod +x /usr/local/bin/t",
        ),
    )
    snapshot = await engine.snapshot(spec)
    async with engine.fork(snapshot) as box:
        done = await sh(box, "pwd; ls; cat built; t; echo $MODE")
        assert done.stdout.split() == [b"/work", b"built", b"test", b"tool", b"test"]
        assert await box.diff() == []
    assert (await engine.snapshot(spec)).id == snapshot.id
    with pytest.raises(SnapshotBuildFailed, match="exit 4"):
        await engine.snapshot(SnapshotSpec(run=("exit 4",)))


async def test_changed_file_is_named_before_a_fork(make_engine, fresh):
    async with make_engine(fresh) as engine:
        snapshot = await engine.snapshot(SnapshotSpec(files={"/app/truth.txt": b"true", "/app/b": b""}, label="mine"))
    target = next(fresh.layer_files(snapshot.layers[1]).glob("app/truth.txt"))
    status = target.stat()
    target.write_bytes(b"fals")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    later = Store(fresh.home)
    async with make_engine(later) as engine:
        with pytest.raises(SnapshotChanged, match=r"/app/truth\.txt differs from its manifest"):
            async with engine.fork(snapshot):
                raise AssertionError
    target.unlink()
    with pytest.raises(SnapshotChanged, match=r"/app/truth\.txt is missing"):
        Store(fresh.home).open("mine")
    (target.parent / "extra").touch()
    with pytest.raises(SnapshotChanged, match="/app/extra"):
        Store(fresh.home).open("mine")


async def test_changed_manifests_are_noticed(make_engine, fresh):
    async with make_engine(fresh) as engine:
        snapshot = await engine.snapshot(SnapshotSpec(files={"/app/a": b"a"}))
    layer = fresh.home / "layers" / snapshot.layers[1] / "manifest.json"
    text = layer.read_text()
    layer.write_text(text.replace("ca978112", "ca978113"))
    with pytest.raises(SnapshotChanged, match="manifest was changed"):
        Store(fresh.home).open(snapshot.id)
    layer.write_text(text)
    assert Store(fresh.home).open(snapshot.id[:8]).id == snapshot.id
    described = fresh.home / "snapshots" / f"{snapshot.id}.json"
    described.write_text(described.read_text().replace("/app", "/bad"))
    with pytest.raises(SnapshotChanged, match="differs from its id"):
        Store(fresh.home).open(snapshot.id)


async def test_list_labels_and_prune(make_engine, fresh):
    async with make_engine(fresh) as engine:
        one = await engine.snapshot(SnapshotSpec(files={"/app/a": b"1"}, label="task"))
        two = await engine.snapshot(SnapshotSpec(files={"/app/a": b"2"}, label="task"))
        assert fresh.find("task").id == two.id
        assert {snapshot.id for snapshot in fresh.list()} == {one.id, two.id}
        async with engine.fork(one):
            with pytest.raises(SnapshotInUse):
                fresh.prune([one.id])
            assert fresh.prune() == []
        assert fresh.prune() == [one.id]
        assert fresh.prune(["task"]) == [two.id]
    assert list((fresh.home / "layers").iterdir()) == []
    with pytest.raises(SnapshotNotFound, match="no snapshot 'task'"):
        fresh.open("task")


async def test_bad_requests_get_one_clear_line(engine, tmp_path):
    for spec in (
        SnapshotSpec(base=tmp_path / "absent.tar"),
        SnapshotSpec(base="no-such-label"),
        SnapshotSpec(files={"/app/x": tmp_path / "absent"}),
        SnapshotSpec(files={"/app/../x": b""}),
    ):
        with pytest.raises(RequestError) as caught:
            await engine.snapshot(spec)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def _archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b"", mode: int = 0o755):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.uid = kind, target, mode, 1234
    return info, data


@pytest.mark.parametrize(
    "members",
    [
        [_member("../../etc/cron.d/x", data=b"x")],
        [_member("a/../../x", data=b"x")],
        [_member("etc", tarfile.SYMTYPE, "/etc"), _member("etc/passwd", data=b"x")],
        [_member("a", tarfile.LNKTYPE, "../../../etc/passwd")],
    ],
    ids=["parent", "inner-parent", "through-link", "hard-link"],
)
async def test_root_filesystem_with_escaping_names_is_refused(engine, store, tmp_path, members):
    before = set((store.home / "layers").iterdir())
    with pytest.raises(RootfsRefused, match="nothing was imported"):
        await engine.snapshot(SnapshotSpec(base=_archive(tmp_path / "root.tar", *members)))
    assert set((store.home / "layers").iterdir()) == before


async def test_imported_root_filesystem_runs_without_its_devices_and_set_uid(engine, sh, tmp_path):
    sources = ("/bin/sh", "/bin/cat", "/bin/ls")
    programs = [
        _member("." + source, data=Path(source).read_bytes(), mode=0o4755)
        for source in (*sources, *_libraries(*sources))
    ]
    archive = _archive(
        tmp_path / "root.tar.gz",
        *programs,
        _member("dev/sda", tarfile.BLKTYPE),
        _member("dev/console", tarfile.CHRTYPE),
        _member("etc/motd", data=b"imported\n", mode=0o640),
        _member("secret", data=b"closed\n", mode=0),
    )
    snapshot = await engine.snapshot(SnapshotSpec(base=archive))
    assert not snapshot.host_usr
    async with engine.fork(snapshot) as box:
        done = await sh(box, "cat /etc/motd secret ../secret; ls -l /bin/cat /usr/bin; ls /dev")
        assert done.stdout.startswith(b"imported\nclosed\n")
        assert b"rws" not in done.stdout and b"sda" not in done.stdout
        assert b"python3" not in done.stdout  # the host's /usr is not there
        assert (await sh(box, "echo x > /etc/motd")).ok
        assert [(change.path, change.how) for change in await box.diff()] == [(b"etc/motd", "changed")]


def _libraries(*programs: str) -> list[str]:
    found: list[str] = []
    for program in programs:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
            found += [word for word in line.split() if word.startswith("/") and word not in found]
    return found


def test_full_disk_is_one_clear_line_and_no_half_snapshot(tmp_path):
    program = """
import asyncio, pathlib, sys
from caisson_runner.boxes.errors import DiskFull
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
home = pathlib.Path(sys.argv[1])
async def main():
    async with LocalEngine(Store(home)) as engine:
        try: await engine.snapshot(SnapshotSpec(files={"/app/big": b"x" * (8 << 20)}))
        except DiskFull as problem: print(problem.exit_code, problem)
    print([path.name for kind in ("layers", "snapshots") for path in (home / kind).glob(".new*")])
asyncio.run(main())
"""
    mount = 'mount -t tmpfs -o size=4m none "$1" && exec "$2" -c "$3" "$1"'
    line = ["unshare", "-Urm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    if "mount:" in done.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.stdout.splitlines()[0].startswith(f"3 no room left below {tmp_path}"), done
    assert done.stdout.splitlines()[1] == "[]"
