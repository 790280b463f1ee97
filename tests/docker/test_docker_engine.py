"""What the docker engine promises beyond the conformance suite in ``tests/boxes``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from caisson_proto.record import Kind
from caisson_runner.boxes import owner
from caisson_runner.boxes.docker_box import hierarchies
from caisson_runner.boxes.engine import BoxLimits, Command
from caisson_runner.boxes.errors import DockerUnavailable
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store

pytestmark = [pytest.mark.docker, pytest.mark.root]
TREE = {"/app/kept.txt": b"kept\n", "/app/gone.txt": b"gone\n", "/app/folder/one.txt": b"1\n"}
WORK = (
    "rm gone.txt; rm -r folder; mkdir folder; echo new > folder/two.txt; echo more >> kept.txt; ln -s x link; mkfifo p"
)


async def run(box, line: str):
    return await (await box.start(Command(("/bin/sh", "-c", line)))).wait()


async def test_the_same_work_gives_the_same_digest_as_in_the_local_engine(engine, store, tmp_path):
    snapshot = await engine.snapshot(SnapshotSpec(files=TREE))
    async with LocalEngine(store) as local:
        assert (await local.snapshot(SnapshotSpec(files=TREE))).id == snapshot.id
        captured = []
        for number, one in enumerate((engine, local)):
            async with one.fork(snapshot) as box:
                assert (await run(box, WORK)).ok
                captured.append(await box.capture(tmp_path / f"{number}.tar.zst"))
        assert captured[0].digest == captured[1].digest
        assert captured[0].changes == captured[1].changes
        for one, other in ((engine, captured[1]), (local, captured[0])):  # and each can go on with the other's state
            async with one.fork(snapshot, state=other.path) as box:
                assert (await run(box, "cat folder/*; ls")).stdout == b"new\nfolder\nkept.txt\nlink\np\n"
                assert (await box.capture(tmp_path / "again.tar.zst")).digest == other.digest


async def test_a_container_lies_below_the_cgroup_made_beforehand_in_every_hierarchy(engine):
    snapshot = await engine.snapshot(SnapshotSpec())
    async with engine.fork(snapshot, limits=BoxLimits(memory_bytes=96 << 20, pids=17, cpu_millis=500)) as box:
        process = await box.start(Command(("/bin/sleep", "60")))
        lines = {name: path for _, name, path in (line.split(":", 2) for line in _cgroups(process.pid))}
        assert all(path == f"/caisson/{box.id}/{box.container}" for path in lines.values()), lines
        assert lines == {name: path for _, name, path in (line.split(":", 2) for line in _cgroups(box.init_pid))}
        found = {key: (place / lines[",".join(sorted(key))].lstrip("/")) for key, place in hierarchies().items() if
                 ",".join(sorted(key)) in lines}  # fmt: skip
        for key, place in found.items():
            if "memory" in key:
                assert (place / "memory.limit_in_bytes").read_text().strip() == str(96 << 20)
            if "pids" in key:
                assert (place / "pids.max").read_text().strip() == "17"
    for place in hierarchies().values():
        assert not (place / "caisson" / box.id).exists()


async def test_where_the_daemon_takes_slices_alone_commands_run_in_our_cgroup_beside_the_container(daemon, store):
    """The systemd driver cannot run here; what the engine does then can: this daemon puts containers elsewhere too."""
    from dataclasses import replace

    from caisson_runner.boxes.docker import DockerEngine
    from caisson_runner.boxes.engine import Outcome

    async with DockerEngine(store, host=daemon.host) as engine:
        engine._daemon = replace(engine._daemon, systemd_cgroups=True)
        snapshot = await engine.snapshot(SnapshotSpec())
        async with engine.fork(snapshot, limits=BoxLimits(pids=20)) as box:
            process = await box.start(Command(("/bin/sleep", "60")))
            assert f"0::/caisson/{box.id}" in _cgroups(process.pid)
            assert f"0::/{daemon.cgroup_parent}/{box.container}" in _cgroups(box.init_pid)
            bomb = await box.start(
                Command(("/bin/sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done"))
            )
            assert (await bomb.wait()).outcome is Outcome.PIDS
            await box.freeze()
            assert box.parent is not None and box.parent.frozen
            await box.thaw()
            await process.kill()
            parent = box.parent.path
    assert not parent.exists()


def _cgroups(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()


@pytest.mark.bpf
async def test_first_exec_and_docker_exec_s_children_are_in_the_record(engine, daemon, tracerd):
    from caisson_runner.witness.ebpf import EbpfWitness, ask

    witness = EbpfWitness(tracerd.socket, ask(tracerd.socket))
    snapshot = await engine.snapshot(SnapshotSpec())
    async with witness.watch("docker-record") as watch:
        async with engine.fork(snapshot, cgroup=watch.cgroup) as box:
            process = await box.start(Command(("/bin/sh", "-c", "cat /etc/hostname")), admit=watch.admit)
            assert (await process.wait()).ok
            later = await box.exec(Command(("/usr/bin/env", "true")), admit=watch.admit)
            assert (await later.wait()).ok
            done = daemon.cli("exec", box.container, "/bin/sh", "-c", "/usr/bin/tail -n1 /etc/passwd")
            assert done.returncode == 0, done.stderr
            await box.kill()
            evidence = await watch.seal()
        records = list(evidence.records())
    assert evidence.coverage["complete"], evidence.coverage["reason"]
    execs = [(record.pid, record.argv) for record in records if record.kind is Kind.EXEC and not record.error]
    words = [argv for _, argv in execs]
    own = [argv for pid, argv in execs if pid == process.pid]
    assert own[0] == (b"/bin/sh", b"-c", b"cat /etc/hostname")
    assert (b"/usr/bin/env", b"true") in words and (b"true",) in words
    assert (b"/bin/sh", b"-c", b"/usr/bin/tail -n1 /etc/passwd") in words
    assert (b"/usr/bin/tail", b"-n1", b"/etc/passwd") in words
    opened = {record.resolved for record in records if record.kind is Kind.OPEN and record.pid == process.pid}
    assert b"/etc/ld.so.cache" in opened


CONFINED = r"""
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return "done" if libc.syscall(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
void = ctypes.create_string_buffer(256)
numbers = {"bpf": (321, 0, void, 128), "io_uring_setup": (425, 1, void), "keyctl": (250, 0, -3, 0),
  "userfaultfd": (323, 1),
  "perf_event_open": (298, void, 0, -1, -1, 0), "mount": (165, b"x", b"/tmp", b"tmpfs", 0, 0), "setns": (308, 0, 0),
  "unshare user": (272, 0x10000000), "clone user": (56, 0x10000000 | 17, 0, 0, 0, 0), "clone3": (435, void, 88),
  "vsock": (41, 40, 1, 0), "packet": (41, 17, 3, 0), "unix": (41, 1, 1, 0), "netlink": (41, 16, 3, 0), "getpid": (39,),
  "unshare nothing": (272, 0), "unknown": (9999,), "netfilter": (41, 16, 3, 12), "handle": (304, -100, void, 0)}
wanted = ("Cap", "NoNew", "Seccomp:")
fields = {line.split(":")[0]: line.split()[1] for line in open("/proc/self/status") if line.startswith(wanted)}
print(json.dumps([{name: call(*words) for name, words in numbers.items()}, fields]))
"""


async def test_what_docker_itself_starts_is_confined_like_our_commands(engine, daemon):
    snapshot = await engine.snapshot(SnapshotSpec())
    async with engine.fork(snapshot) as box:
        ours = await (await box.start(Command(("/usr/bin/python3", "-c", CONFINED)))).wait()
        theirs = daemon.cli("exec", box.container, "/usr/bin/python3", "-c", CONFINED)
    assert theirs.returncode == 0, theirs.stderr
    (calls, fields), (their_calls, their_fields) = json.loads(ours.stdout), json.loads(theirs.stdout)
    # before Docker 23 a profile has no default errno: what is not on the list answers EPERM instead of ENOSYS
    refused = {"EPERM": "refused", "ENOSYS": "refused"}
    assert {name: refused.get(said, said) for name, said in their_calls.items()} == {
        name: refused.get(said, said) for name, said in calls.items()
    }
    assert their_calls["clone3"] == "ENOSYS"  # libc goes back to clone on nothing else
    assert their_fields == fields
    assert calls["bpf"] == "EPERM" and calls["unknown"] == "ENOSYS" and calls["unix"] == "done"


RUNNER = """
import asyncio, sys, pathlib
from caisson_runner.boxes.docker import DockerEngine
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.store import SnapshotSpec, Store
async def main():
    async with DockerEngine(Store(pathlib.Path(sys.argv[1])), host=sys.argv[2]) as engine:
        async with engine.fork(await engine.snapshot(SnapshotSpec())) as box:
            process = await box.start(Command(("/bin/sh", "-c", "trap '' TERM; sleep 300 & sleep 301")))
            await asyncio.sleep(0.2)
            print(box.id, box.init_pid, process.pid, flush=True)
            await asyncio.sleep(300)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_killed_runner_leaves_no_container_process_or_cgroup(daemon, client, tmp_path, number):
    import time

    words = [sys.executable, "-c", RUNNER, str(tmp_path / "store"), daemon.host]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as child:
        box, *pids = child.stdout.readline().split()
        child.send_signal(number)
        child.wait()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and (
        client.containers.list(all=True, filters={"label": f"caisson.box={box}"}, ignore_removed=True)
        or list((tmp_path / "store/boxes").iterdir())
    ):
        time.sleep(0.05)
    assert client.containers.list(all=True, filters={"label": f"caisson.box={box}"}, ignore_removed=True) == []
    assert [pid for pid in pids if owner.start_time(int(pid)) is not None] == []
    assert list((tmp_path / "store/boxes").iterdir()) == []
    from caisson_tracerd.cgroup import v2_root

    for place in (v2_root(), *hierarchies().values()):
        assert not (place / "caisson" / box).exists(), place


async def test_containers_that_never_came_to_run_are_swept_by_the_next_runner(daemon, client, store):
    from caisson_runner.boxes.docker import LABEL_NAMESPACE, LABEL_OWNER, LABEL_UID, DockerEngine
    from docker_daemon import IMAGE

    here = str(Path("/proc/self/ns/pid").stat().st_ino)

    def make(mark: str, uid: int, namespace: str = here) -> str:
        labels = {LABEL_OWNER: mark, LABEL_UID: str(uid), LABEL_NAMESPACE: namespace}
        return client.containers.create(IMAGE, ["/bin/busybox", "true"], labels=labels).id

    dead, alive, other = make("00000000-1-1", 0), make(owner.mark(), 0), make("00000000-1-1", 12345)
    elsewhere = make("00000000-1-1", 0, "1")
    async with DockerEngine(store, host=daemon.host):
        left = {container.id for container in client.containers.list(all=True, ignore_removed=True)}
    assert dead not in left and {alive, other, elsewhere} <= left
    for one in (alive, other, elsewhere):
        client.containers.get(one).remove()


async def test_pruned_snapshots_take_their_images_along(daemon, client, tmp_path):
    from caisson_runner.boxes.docker import DockerEngine
    from caisson_runner.boxes.docker_image import tag

    store = Store(tmp_path / "store")
    async with DockerEngine(store, host=daemon.host) as engine:
        kept = await engine.snapshot(SnapshotSpec(files={"/app/a": b"1"}, label="kept"))
        gone = await engine.snapshot(SnapshotSpec(files={"/app/a": b"2"}))
    names = {name for image in client.images.list() for name in image.tags}
    assert {tag(kept), tag(gone)} <= names
    assert store.prune() == [gone.id]
    async with DockerEngine(store, host=daemon.host):
        pass
    names = {name for image in client.images.list() for name in image.tags}
    assert tag(kept) in names and tag(gone) not in names


async def test_no_daemon_and_unfit_daemons_are_one_clear_line(tmp_path, store):
    from caisson_runner.boxes.docker import DockerEngine, _check
    from caisson_runner.boxes.docker_api import Daemon

    with pytest.raises(DockerUnavailable, match="no Docker daemon answers at unix:") as caught:
        async with DockerEngine(store, host=f"unix://{tmp_path}/none.sock"):
            raise AssertionError
    assert "\n" not in str(caught.value) and caught.value.exit_code == 3
    with pytest.raises(DockerUnavailable, match="storage driver is vfs"):
        _check(Daemon("20.10", "vfs", "", False, False))


def test_plain_users_are_told_to_use_the_local_engine(monkeypatch, store):
    from caisson_runner.boxes.docker import DockerEngine

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DockerUnavailable, match="use --engine local"):
        DockerEngine(store)


@pytest.mark.slow
def test_the_article_gives_the_same_tables_in_containers(daemon, tmp_path):
    """Times and seeds apart: what the tables count, and final states but for the shared box's (compiled files)."""
    tables = {}
    for kind in ("local", "docker"):
        words = [sys.executable, "-m", "caisson_runner", "suite", "article", "--engine", kind, "-n", "2", "--json"]
        words += ["-o", str(tmp_path / kind), "--witness", "none"]
        environment = {
            **daemon.environment,
            "CAISSON_HOME": str(tmp_path / "home"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        document = json.loads(done.stdout)
        assert document["unexpected"] == []
        tables[kind] = {
            run["id"]: [run[key] for key in ("verdict", "trusting", "ground_truth", "held_out", "lie")]
            + [run["state_digest"] if run["id"] != "E3-shared" else ""]
            for run in document["runs"]
        }
    assert tables["docker"] == tables["local"]


async def test_a_fork_cancelled_at_any_moment_leaves_no_container_and_no_cgroup(engine, client, store):
    import asyncio

    from caisson_tracerd.cgroup import v2_root

    snapshot = await engine.snapshot(SnapshotSpec())

    async def session(name: str) -> None:
        async with engine.fork(snapshot, box_id=name) as box:
            await (await box.start(Command(("/bin/sleep", "60")))).wait()

    for step in range(8):
        name = f"cancelled-{os.getpid()}-{step}"
        task = asyncio.create_task(session(name))
        await asyncio.sleep(step * 0.07)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.containers.list(all=True, filters={"label": f"caisson.box={name}"}, ignore_removed=True) == []
        for place in (v2_root(), *hierarchies().values()):
            assert not (place / "caisson" / name).exists(), (step, place)
    assert list((store.home / "boxes").iterdir()) == []
