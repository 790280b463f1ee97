"""Conservation under the heaviest load this machine can make, and lossless boxes, which drop nothing at all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import Kind
from caisson_tracerd import missed
from caisson_tracerd.cgroup import Cgroup
from storm import assert_conserved, build, dropped, require_all_runs
from tracerd_rig import FEWER, SLOW

if TYPE_CHECKING:
    from tracerd_rig import Client, Daemon

pytestmark = [pytest.mark.root, pytest.mark.bpf]
CORES = os.cpu_count() or 1


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("storm")))


@pytest.fixture
def second(daemon: Daemon) -> Iterator[Daemon]:
    import tracerd_rig

    made = tracerd_rig.make_daemon("storm")
    yield made
    made.remove()


def sealed(client: Client, box_id: str) -> pb.SealBoxResponse:
    return client.stub.SealBox(pb.SealBoxRequest(id=box_id), timeout=60 * SLOW)


def by_kind(answer: pb.SealBoxResponse) -> dict[str, pb.ClassCount]:
    return {count.kind: count for count in answer.counts}


@contextlib.contextmanager
def nobody_drains(daemon: Daemon) -> Iterator[None]:
    """The daemon stands still, so that rings run full on any machine; its brake, a process of its own, does not."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def wait_until_frozen(cgroup: Cgroup) -> None:
    deadline = time.monotonic() + 20 * SLOW
    while not cgroup.frozen:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def braking(daemon: Daemon) -> list[int]:
    """Pids of the daemon's brake."""
    assert daemon.process is not None
    found = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    return [int(pid) for pid in found if b"brake.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def holds_a_box(brake: int) -> bool:
    """Whether the brake has been handed a box that it can freeze."""
    try:
        return any(entry.readlink().name == "cgroup.freeze" for entry in Path(f"/proc/{brake}/fd").iterdir())
    except FileNotFoundError:
        return False


def test_every_call_of_a_storm_from_all_cores_is_counted_and_the_neighbour_loses_nothing(
    client: Client, storm: str
) -> None:
    calls, workers = 50_000 // FEWER, 2 * CORES
    client.create("noisy", ring_bytes=1 << 20)
    client.create("quiet", ring_bytes=1 << 18)
    noisy = client.start("noisy", [storm, "o", str(calls), str(workers)])
    rounds = 0
    while noisy.poll() is None or not rounds:
        assert client.run("quiet", [storm, "o", "200", "1"]).stdout == b"200\n"
        rounds += 1
        time.sleep(0.05)
    assert noisy.stdout is not None
    assert noisy.stdout.read() == b"%d\n" % (calls * workers)
    answers = sealed(client, "noisy"), sealed(client, "quiet")
    require_all_runs(mark for answer in answers for mark in answer.marks)
    lost, kept = map(by_kind, answers)
    assert_conserved(lost, client.journal("noisy"))
    assert_conserved(kept, client.journal("quiet"))
    opened = [record.given or record.given_exit for record in client.records("quiet") if record.kind == Kind.OPEN]
    own = opened.count(b"/dev/null")
    assert dropped(kept) == 0
    assert own == 200 * rounds
    # Beside the storm's own: the libraries of each start, and a file with the number of cores in each worker.
    libraries = (kept["open"].seen - own) // rounds - 1
    assert lost["open"].seen == calls * workers + libraries + workers
    assert lost["fork"].seen == workers
    assert lost["exit"].seen == workers + 1


def test_what_the_kernel_leaves_out_can_be_asked_of_every_program(daemon: Daemon) -> None:
    manifest = json.loads((daemon.run_dir / "manifest.json").read_text())
    points = [name for name in manifest["hooks"] if "__" not in name]
    links = [Path(manifest["pins"]) / f"link_{name}" for name in points]
    assert all(missed.of_link(link) >= 0 for link in links)
    assert missed.total(Path(manifest["pins"])) == sum(missed.of_link(link) for link in links)


@pytest.mark.parametrize(("mode", "calls", "kind"), [("o", 40_000, "open"), ("l", 2_500, "open"), ("f", 1_000, "fork")])
def test_a_lossless_box_drops_nothing_however_small_its_ring(
    client: Client, daemon: Daemon, storm: str, mode: str, calls: int, kind: str
) -> None:
    calls //= FEWER
    fills = mode != "f" and FEWER == 1  # forks fill no ring faster than it is drained, an emulated machine hardly one
    box = client.create("box", lossless=True, ring_bytes=1 << 22).box
    process = client.hold("box", [storm, mode, str(calls), str(2 * CORES)])
    with nobody_drains(daemon) if fills else contextlib.nullcontext():
        client.go(process)
        if fills:
            wait_until_frozen(Cgroup.open(Path(box.cgroup_path)))
    assert process.communicate(timeout=60 * SLOW)[0] == b"%d\n" % (calls * 2 * CORES)
    answer = sealed(client, "box")
    require_all_runs(answer.marks)
    counts = by_kind(answer)
    assert_conserved(counts, client.journal("box"))
    assert dropped(counts) == 0
    assert counts[kind].seen >= calls * 2 * CORES
    assert list(answer.marks) == []
    stood = answer.freezes
    if fills:
        assert stood.count > 0
        assert 0 < stood.longest_ns <= stood.total_ns
        assert (1 << 21) < stood.peak_bytes < 1 << 22
        assert sum(gap.end_ns - gap.begin_ns for gap in stood.gaps) <= stood.total_ns


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["o", "l", "f", "b"])
def test_a_lossless_box_drops_nothing_in_ten_seconds_of_storm(client: Client, storm: str, mode: str) -> None:
    client.create("box", lossless=True)
    client.run("box", [storm, mode, "0", str(8 * CORES), "10"])
    answer = sealed(client, "box")
    assert dropped(by_kind(answer)) == 0
    assert answer.freezes.peak_bytes < answer.freezes.ring_bytes


def test_what_the_runner_froze_stays_frozen_when_the_record_is_drained(client: Client, storm: str) -> None:
    box = client.create("box", lossless=True, ring_bytes=1 << 22).box
    process = client.start("box", [storm, "o", "0", str(CORES), "30"])
    cgroup = Cgroup.open(Path(box.cgroup_path))
    for _ in range(20):
        time.sleep(0.03)
        cgroup.freeze()
        time.sleep(0.03)
        assert cgroup.frozen
        before = client.stub.ListBoxes(pb.ListBoxesRequest()).boxes[0].journal_bytes
        client.journal("box", offset=before)
        assert cgroup.frozen
        cgroup.thaw()
    assert process.poll() is None
    cgroup.kill()
    process.wait(5 * SLOW)
    assert dropped(by_kind(sealed(client, "box"))) == 0


def test_a_brake_that_is_killed_is_replaced_and_the_box_runs_on(client: Client, daemon: Daemon, storm: str) -> None:
    box = client.create("box", lossless=True, ring_bytes=1 << 24).box
    cgroup = Cgroup.open(Path(box.cgroup_path))
    process = client.start("box", [storm, "o", "0", str(CORES), "60"])
    killed: set[int] = set()
    for _ in range(3):
        time.sleep(0.2)
        for pid in braking(daemon):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    deadline = time.monotonic() + 20 * SLOW
    while not any(holds_a_box(pid) for pid in set(braking(daemon)) - killed):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with nobody_drains(daemon):
        wait_until_frozen(cgroup)
    assert process.poll() is None
    cgroup.kill()
    process.wait(20 * SLOW)
    answer = sealed(client, "box")
    assert dropped(by_kind(answer)) == 0
    assert answer.freezes.count > 0


def test_a_lossless_box_stands_still_while_there_is_no_daemon(second: Daemon, storm: str) -> None:
    second.start()
    client = second.client()
    box = client.create("box", lossless=True, ring_bytes=1 << 22).box
    process = client.start("box", [storm, "o", "100000", str(CORES)], stdout=subprocess.PIPE)
    second.stop(signal.SIGKILL)
    cgroup = Cgroup.open(Path(box.cgroup_path))
    wait_until_frozen(cgroup)
    assert process.poll() is None
    time.sleep(0.3)
    second.start()
    assert process.wait(60 * SLOW) == 0
    client = second.client()
    answer = sealed(client, "box")
    counts = by_kind(answer)
    assert_conserved(counts, client.journal("box"))
    assert dropped(counts) == 0
    assert counts["open"].seen >= 100_000 * CORES
    assert answer.freezes.longest_ns > 300_000_000
    client.drop("box")


def test_the_brake_runs_with_real_time_priority_and_ends_with_its_daemon(second: Daemon) -> None:
    second.options = ("--unload-on-exit",)
    second.start()
    second.client().create("box", lossless=True)
    (pid,) = braking(second)
    assert os.sched_getscheduler(pid) == os.SCHED_FIFO
    assert second.stop() == 0
    assert not Path(f"/proc/{pid}").exists()
