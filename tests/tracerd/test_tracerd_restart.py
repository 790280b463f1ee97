"""Kills, restarts, upgrades, full disks, lost readers, forced removals: each ends in a clear state."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import tracerd_rig
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import Flag, Kind, decode, strip_ring
from caisson_runner.witness import Limits
from caisson_runner.witness.ebpf import EbpfWitness, ask
from caisson_tracerd import stored
from caisson_tracerd.cgroup import Cgroup
from caisson_tracerd.process import look
from storm import assert_conserved, build, dropped, require_all_runs
from tracerd_rig import FEWER, SLOW

if TYPE_CHECKING:
    from tracerd_rig import Client, Daemon

pytestmark = [pytest.mark.root, pytest.mark.bpf]
CORES = os.cpu_count() or 1
CALLS = 60_000 // FEWER
PID_NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("storm")))


@pytest.fixture(scope="module")
def hardy() -> Iterator[Daemon]:
    """A daemon of this file's own, killed and started many times with its pins in place."""
    reason = tracerd_rig.why_not()
    if reason:
        pytest.skip(reason)
    made = tracerd_rig.make_daemon("restart")
    yield made
    made.remove()


@pytest.fixture
def second(hardy: Daemon) -> Iterator[Daemon]:
    if hardy.process is None:
        hardy.start()
    yield hardy
    if hardy.process is None:
        hardy.start()
    client = hardy.client()
    for box in client.stub.ListBoxes(pb.ListBoxesRequest()).boxes:
        client.drop(box.id)
    client.channel.close()


class SmallDisk(tracerd_rig.Daemon):
    """A daemon whose state lies on a tmpfs of its own, in a mount namespace of its own."""

    size = "6M"

    def command(self, name: str, *options: str) -> list[str]:
        plain = super().command(name, *options)
        if name != "serve":
            return plain
        state = self.root / "state"
        state.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={self.size} none {state} && exec "$@"'
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh", *plain]


@pytest.fixture(scope="module")
def small_disk(daemon: Daemon) -> Iterator[SmallDisk]:
    like = tracerd_rig.make_daemon("disk")
    made = SmallDisk(like.root, like.cgroup_parent, ("--unload-on-exit",))
    made.start()
    yield made
    made.remove()


def sealed(client: Client, box_id: str) -> tuple[dict[str, pb.ClassCount], list[str]]:
    answer = client.stub.SealBox(pb.SealBoxRequest(id=box_id), timeout=60 * SLOW)
    return {count.kind: count for count in answer.counts}, list(answer.marks)


def until(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds * SLOW
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def boxes(client: Client) -> dict[str, pb.Box]:
    return {box.id: box for box in client.stub.ListBoxes(pb.ListBoxesRequest(), timeout=10 * SLOW).boxes}


def descriptors(daemon: Daemon) -> int:
    assert daemon.process is not None
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def manifest_of(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((daemon.run_dir / "manifest.json").read_text())
    return found


def pretend_other_version(daemon: Daemon) -> None:
    """The pins become those of another build of the same layout."""
    manifest = daemon.run_dir / "manifest.json"
    found = json.loads(manifest.read_text())
    found["sources"]["open.h"] = "0" * 64
    manifest.write_text(json.dumps(found))


@pytest.mark.parametrize("lossless", [True, False])
def test_killed_and_upgraded_at_any_moment_of_a_storm_the_journal_is_whole(
    second: Daemon, storm: str, lossless: bool
) -> None:
    client = second.client()
    client.create("box", lossless=lossless, ring_bytes=1 << 23)
    process = client.start("box", [storm, "o", str(CALLS), str(CORES)])
    moments = random.Random(7)
    for number in range(3):
        time.sleep(moments.uniform(0, 0.25))
        second.stop(signal.SIGKILL)
        if number == 1:
            pretend_other_version(second)
        time.sleep(moments.uniform(0, 0.2))
        second.start()
    assert process.wait(60 * SLOW) == 0
    client = second.client()
    counts, marks = sealed(client, "box")
    require_all_runs(marks)
    assert_conserved(counts, client.journal("box"))
    assert counts["open"].seen >= CALLS * CORES
    if lossless:
        assert dropped(counts) == 0
    assert marks == []
    client.drop("box")


async def test_a_run_that_begins_while_the_daemon_is_away_waits_for_it(second: Daemon) -> None:
    path = second.run_dir / "0" / "tracerd.sock"
    witness = EbpfWitness(path, ask(path))
    second.stop(signal.SIGKILL)
    back = threading.Timer(0.3, second.start)
    back.start()
    try:
        async with witness.watch("late", Limits()) as watch:
            process = subprocess.Popen(["/bin/sh", "-c", "read -r _; exec /bin/true"], stdin=subprocess.PIPE)
            await watch.admit(process.pid)
            process.communicate(b"\n", timeout=10 * SLOW)
            evidence = await watch.seal()
            assert sum(record.kind == Kind.EXEC for record in evidence.records()) == 1
    finally:
        back.join(60 * SLOW)
    assert evidence.detail.complete, evidence.detail.reason


def test_a_daemon_killed_while_boxes_come_and_go_leaves_nothing_half(second: Daemon) -> None:
    def come_and_go(stop: threading.Event) -> None:
        client = second.client()
        for number in range(10_000):
            if stop.is_set():
                return
            try:
                client.create(f"box-{number}")
                client.run(f"box-{number}", ["/bin/true"])
                client.drop(f"box-{number}")
            except grpc.RpcError:
                return

    for delay in (0.03, 0.11, 0.23):
        stop = threading.Event()
        thread = threading.Thread(target=come_and_go, args=(stop,))
        thread.start()
        time.sleep(delay)
        second.stop(signal.SIGKILL)
        stop.set()
        thread.join(20 * SLOW)
        second.start()
        client = second.client()
        here = boxes(client)
        folders = {path.name for path in (second.root / "state" / "boxes").glob("0/*")}
        parent = Path("/proc/self/mounts")  # the v2 root, found as the daemon finds it
        root = next(Path(line.split()[1]) for line in parent.read_text().splitlines() if line.split()[2] == "cgroup2")
        cgroups = {path.name for path in (root / second.cgroup_parent / "user.0").glob("*") if path.is_dir()}
        assert folders == set(here)
        assert cgroups == set(here)
        for box_id in here:
            counts, _ = sealed(client, box_id)
            assert_conserved(counts, client.journal(box_id))
            client.drop(box_id)


def test_a_full_disk_is_told_and_what_it_cost_is_counted(small_disk: SmallDisk, storm: str) -> None:
    client = small_disk.client()
    client.create("box", ring_bytes=1 << 20)
    client.create("other", ring_bytes=1 << 18)
    assert client.run("box", [storm, "o", "30000", str(CORES)]).returncode == 0
    counts, marks = sealed(client, "box")
    assert_conserved(counts, client.journal("box"))
    assert counts["open"].seen >= 30_000 * CORES
    assert dropped(counts) > 0
    assert any("No space left" in mark for mark in marks), marks
    assert "No space left" in small_disk.log.read_text()
    client.drop("box")
    client.run("other", ["/bin/true"])
    counts, marks = sealed(client, "other")
    assert (counts["exec"].delivered, dropped(counts)) == (1, 0)
    client.drop("other")


def test_a_lossless_box_waits_for_room_on_the_disk_and_then_loses_nothing(small_disk: SmallDisk, storm: str) -> None:
    client = small_disk.client()
    client.create("hog", ring_bytes=1 << 22)
    client.run("hog", [storm, "o", "20000", "1"])
    box = client.create("box", lossless=True, ring_bytes=1 << 20).box
    process = client.start("box", [storm, "o", "25000", "1"])
    cgroup = Cgroup.open(Path(box.cgroup_path))

    def stands() -> bool:
        return cgroup.frozen and "No space left" in "".join(boxes(client)["box"].marks)

    until(stands)
    time.sleep(0.5)
    assert process.poll() is None
    assert stands()
    client.drop("hog")
    assert process.wait(20 * SLOW) == 0
    answer = client.stub.SealBox(pb.SealBoxRequest(id="box"), timeout=20 * SLOW)
    counts = {count.kind: count for count in answer.counts}
    assert_conserved(counts, client.journal("box"))
    assert dropped(counts) == 0
    assert answer.freezes.longest_ns > 400_000_000
    client.drop("box")


def test_a_reader_that_stops_for_long_costs_no_memory_and_gets_everything(second: Daemon, storm: str) -> None:
    client = second.client()
    client.create("box", lossless=True)
    assert second.process is not None
    status = Path(f"/proc/{second.process.pid}/status")

    def own_memory() -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("RssAnon")]
        return int(line.split()[1]) * 1024

    stream = client.stub.ReadJournal(pb.ReadJournalRequest(id="box", follow=True), timeout=120 * SLOW)
    client.run("box", ["/bin/true"])
    first = next(stream).data
    before = own_memory()
    client.run("box", [storm, "o", "80000", str(CORES)])  # and nobody reads: minutes for a runner, here a storm
    time.sleep(1)
    assert own_memory() - before < 16 << 20
    counts, _ = sealed(client, "box")
    whole = first + b"".join(part.data for part in stream)
    assert_conserved(counts, whole)
    assert dropped(counts) == 0
    client.drop("box")


def test_two_hundred_boxes_at_once_are_all_recorded_whole(second: Daemon) -> None:
    count = 200
    client = second.client()

    def live(number: int) -> tuple[int, int, int]:
        name = f"box-{number}"
        client.run(name, ["/bin/true", name])
        counts, _ = sealed(client, name)
        canonical, _ = strip_ring(client.journal(name))
        own = [record for record in decode(canonical) if record.kind == Kind.EXEC]
        return len(own), dropped(counts), int(own[0].argv == (b"/bin/true", name.encode()))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: client.create(f"box-{number}", ring_bytes=1 << 16), range(count)))
        assert len(boxes(client)) == count
        assert set(pool.map(live, range(count))) == {(1, 0, 1)}
        list(pool.map(lambda number: client.drop(f"box-{number}"), range(count)))
    assert boxes(client) == {}
    until(lambda: descriptors(second) < 100)


def test_a_box_that_dies_between_admit_and_start_is_a_record_of_one_exit(second: Daemon) -> None:
    client = second.client()
    client.create("box")
    waiting = subprocess.Popen(["/bin/sh", "-c", "read -r _"], stdin=subprocess.PIPE)
    client.stub.Admit(pb.AdmitRequest(id="box", pid=waiting.pid), timeout=10 * SLOW)
    waiting.kill()
    waiting.wait()
    counts, marks = sealed(client, "box")
    require_all_runs(marks)
    (last,) = client.records("box")
    assert (last.kind, last.args[1], marks) == (Kind.EXIT, signal.SIGKILL, [])
    assert counts["exec"].seen == 0


def test_a_cgroup_removed_by_force_ends_the_box_in_a_sealed_record_that_says_so(second: Daemon) -> None:
    client = second.client()
    box = client.create("box").box
    client.run("box", ["/bin/true"])
    Path(box.cgroup_path).rmdir()
    until(lambda: boxes(client)["box"].state == pb.Box.STATE_SEALED)
    counts, marks = sealed(client, "box")
    require_all_runs(marks)
    assert counts["exec"].delivered == 1
    assert ["removed by somebody else" in mark for mark in marks] == [True]
    with pytest.raises(grpc.RpcError) as problem:
        client.start("box", ["/bin/true"])
    assert problem.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    client.drop("box")


@pytest.mark.parametrize("restart", [False, True])
def test_another_cgroup_in_the_boxs_place_is_never_taken_for_it(second: Daemon, restart: bool) -> None:
    client = second.client()
    box = client.create("box").box
    client.run("box", ["/bin/true"])
    path = Path(box.cgroup_path)
    if restart:
        time.sleep(0.2)
        second.stop(signal.SIGKILL)
    path.rmdir()
    path.mkdir(parents=True)
    assert path.stat().st_ino != box.cgroup_id
    if restart:
        second.start()
        assert boxes(second.client()) == {}
        assert "box box did not survive" in second.log.read_text()
    else:
        with pytest.raises(grpc.RpcError):
            client.start("box", ["/bin/true"])
        until(lambda: boxes(client)["box"].state == pb.Box.STATE_SEALED)
        client.drop("box")
    assert not path.exists()
    client = second.client()
    assert client.create("box").box.cgroup_id not in (box.cgroup_id, 0)
    client.drop("box")


def test_a_pid_that_has_come_to_mean_another_process_is_not_admitted(second: Daemon) -> None:
    client = second.client()
    client.create("box")
    first = subprocess.Popen(["sleep", "60"])
    pid, ticks = first.pid, look(first.pid).start_ticks
    first.kill()
    first.wait()
    time.sleep(0.03)
    again = None
    for _ in range(200):  # others fork too
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        again = subprocess.Popen(["sleep", "60"])
        if again.pid == pid:
            break
        again.kill()
        again.wait()
    else:
        pytest.skip("this machine forks too busily for the number to be had again")
    try:
        for request in (
            lambda: client.stub.Admit(pb.AdmitRequest(id="box", pid=pid, start_ticks=ticks), timeout=10 * SLOW),
            lambda: client.create("owned", owner=pb.Owner(pid=pid, start_ticks=ticks, pid_namespace=PID_NAMESPACE)),
        ):
            with pytest.raises(grpc.RpcError) as problem:
                request()
            assert problem.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        again.kill()
        again.wait()
    assert list(boxes(client)) == ["box"]
    client.drop("box")


def owner_of_a_box(daemon: Daemon, name: str) -> subprocess.Popen[bytes]:
    """A runner that made a box and waits."""
    code = f"""
import os, sys, time
sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}
from pathlib import Path
from tracerd_rig import Client
from caisson_proto import tracerd_pb2 as pb
from caisson_tracerd.process import look
client = Client(Path({str(daemon.run_dir / "0" / "tracerd.sock")!r}))
owner = pb.Owner(pid=os.getpid(), start_ticks=look(os.getpid()).start_ticks, pid_namespace={PID_NAMESPACE})
client.create({name!r}, owner=owner)
client.start({name!r}, ["sleep", "600"])
print("made", flush=True)
time.sleep(600)
"""
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"made\n"
    return made


def test_the_box_of_a_killed_runner_goes_with_it(second: Daemon) -> None:
    client = second.client()
    owner = owner_of_a_box(second, "left")
    path = Path(boxes(client)["left"].cgroup_path)
    inside = Cgroup.open(path).pids()
    assert inside
    owner.kill()
    owner.wait()
    until(lambda: not boxes(client) and not path.exists())
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in inside)


def test_the_box_of_a_runner_that_was_killed_while_no_daemon_ran_goes_at_the_next_start(second: Daemon) -> None:
    owner = owner_of_a_box(second, "left")
    path = Path(boxes(second.client())["left"].cgroup_path)
    second.stop(signal.SIGKILL)
    owner.kill()
    owner.wait()
    second.start()
    until(lambda: not boxes(second.client()) and not path.exists())


def test_the_loader_does_not_outlive_a_daemon_killed_while_it_loads(daemon: Daemon) -> None:
    made = tracerd_rig.make_daemon("orphan", "--unload-on-exit")
    compiling = {**os.environ, "CAISSON_CACHE": ""}
    process = subprocess.Popen(made.command("serve"), stderr=subprocess.DEVNULL, env=compiling)
    try:
        found: list[int] = []

        def loading() -> bool:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            found[:] = [pid for pid in map(int, children) if b"loader.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            return bool(found)

        until(loading)
        time.sleep(0.2)
        process.kill()
        process.wait()
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in found))
        made.start()
        assert made.stop() == 0
    finally:
        process.kill()
        process.wait()
        made.remove()


def test_many_restarts_leak_nothing(second: Daemon) -> None:
    client = second.client()
    client.create("box")
    for _ in range(3):
        second.stop(signal.SIGKILL)
        second.start()
    assert second.process is not None
    assert descriptors(second) < 60
    resident = int(Path(f"/proc/{second.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
    assert resident < 80 << 20


def test_what_was_compiled_once_is_loaded_again_and_passes_the_self_test(second: Daemon) -> None:
    before = manifest_of(second)
    second.stop()
    subprocess.run(second.command("unload"), check=True, capture_output=True)
    second.start()
    manifest = manifest_of(second)
    assert manifest["compiled"] is False
    same = ("tier", "hooks", "trampoline", "bytecode_sha256")
    assert {name: manifest[name] for name in same} == {name: before[name] for name in same}
    opened = [
        record for record in second.client().watch("box", ["/bin/cat", "/etc/hostname"]) if record.kind == Kind.OPEN
    ]
    inside = any(one["hook"] == "open" and one["ok"] for one in manifest["trampoline"])
    assert opened and any(Flag.KERNEL in record.flags for record in opened) == inside


def test_stored_programs_that_are_damaged_or_not_roots_are_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    file = folder / "x.json"
    for content in ("", "{}", "0\n{}", "\n" * 3):
        file.write_text(content)
        with pytest.raises(stored.Unusable):
            stored.restore(folder, "x", tmp_path / "pins")
    document = json.dumps({"maps": {}, "programs": {}, "stages": {}, "pinned": [], "points": []})
    file.write_text(hashlib.sha256(document.encode()).hexdigest() + "\n" + document)
    folder.chmod(0o777)
    with pytest.raises(stored.Unusable, match="others than root"):
        stored.restore(folder, "x", tmp_path / "pins")
    with pytest.raises(stored.Unusable):
        stored.restore(folder, "absent", tmp_path / "pins")
    assert not (tmp_path / "pins").exists()
