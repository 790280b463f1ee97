"""Witnessing a container that somebody else started: what is said of before, and that nothing in it changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from caisson_proto.record import Kind, Record
from caisson_runner.bundle import Bundle
from caisson_runner.bundle.canonical import unescape
from caisson_runner.witness.attach import attach
from caisson_runner.witness.ebpf import EbpfWitness, ask
from caisson_runner.witness.errors import WitnessError
from caisson_tracerd import attach as daemon_side
from caisson_tracerd.cgroup import Cgroup, Limits, v2_root
from caisson_tracerd.errors import NotYours, UsageError
from caisson_tracerd.layout import Layout
from docker_daemon import IMAGE

pytestmark = [pytest.mark.docker, pytest.mark.root, pytest.mark.bpf]
LOOP = "exec 7</bin/busybox; while :; do /bin/busybox cat /etc/hosts >/dev/null; /bin/busybox usleep 50000; done"
NOBODY = 65534
SH = ["/bin/busybox", "sh", "-c"]


@contextmanager
def running(client, line: str, **options) -> Iterator[object]:
    """A container as anybody would start one."""
    container = client.containers.run(IMAGE, [*SH, line], detach=True, network_mode="none", **options)
    try:
        container.reload()
        yield container
    finally:
        container.remove(force=True)


@pytest.fixture
def witness(tracerd):
    return EbpfWitness(tracerd.socket, ask(tracerd.socket))


@dataclass(frozen=True)
class Sealed:
    """What a watch hands over, read before its files go with it."""

    records: list[Record]
    coverage: dict[str, Any]

    @property
    def execs(self) -> list[tuple[bytes, ...]]:
        return [record.argv for record in self.records if record.kind is Kind.EXEC and not record.error]


async def seal(attached) -> Sealed:
    evidence = await attached.watch.seal()
    return Sealed(list(evidence.records()), evidence.coverage)


async def test_what_ran_and_was_open_before_is_listed_and_what_comes_after_is_recorded(client, daemon, witness):
    with running(client, LOOP, working_dir="/tmp-of-mine") as container:
        time.sleep(0.3)
        cgroups = Path(f"/proc/{container.attrs['State']['Pid']}/cgroup")
        before = cgroups.read_text()
        began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        async with attach(witness, container.id, docker_host=daemon.host) as attached:
            assert daemon.cli("exec", container.id, *SH, "/bin/busybox head -c1 /bin/busybox; exit 3").returncode == 3
            evidence = await seal(attached)
            done = daemon.cli("exec", container.id, "/bin/busybox", "true")  # no longer recorded
            assert done.returncode == 0
        container.reload()
        assert container.status == "running"
        assert cgroups.read_text() == before
    assert began < attached.since_boottime_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert abs(attached.since_wall_ns - time.time_ns()) < 60e9
    assert attached.container == container.id and attached.name == container.name

    processes = attached.census["processes"]
    init = next(one for one in processes if one["pid"] == container.attrs["State"]["Pid"])
    assert init["argv"] == [*SH, LOOP] and init["inner_pid"] == 1 and init["uid"] == 0
    assert init["cwd"] == "/tmp-of-mine" and init["exe"] == "/bin/busybox" and init["mapped"] == ["/bin/busybox"]
    assert {"fd": 7, "target": "/bin/busybox", "flags": os.O_RDONLY | 0o100000} in init["open"]
    assert attached.census["cut"] == []

    words = evidence.execs
    assert (b"/bin/busybox", b"cat", b"/etc/hosts") in words
    assert (b"/bin/busybox", b"head", b"-c1", b"/bin/busybox") in words
    assert (b"/bin/busybox", b"true") not in words
    assert evidence.coverage["complete"], evidence.coverage["reason"]
    opened = [record for record in evidence.records if record.kind is Kind.OPEN and record.resolved == b"/etc/hosts"]
    assert opened and all(record.time_ns >= began for record in evidence.records)


async def test_containers_at_other_depths_are_recorded_each_by_itself(client, daemon, witness):
    line = "while :; do /bin/busybox echo {} >/dev/null; /bin/busybox usleep 50000; done"
    top = f"/caisson-test-{os.getpid()}"
    with (
        running(client, line.format("flat")) as flat,
        running(client, line.format("deep"), cgroup_parent=f"{top}/a/b/c") as deep,
        running(client, line.format("quiet")),
    ):
        async with attach(witness, flat.id, docker_host=daemon.host) as one:
            async with attach(witness, deep.id, docker_host=daemon.host) as two:
                assert len(two.cgroup.parts) - len(one.cgroup.parts) == 3
                time.sleep(0.3)
                deeper = await seal(two)
            time.sleep(0.3)  # the other level is out of use now
            flatter = await seal(one)
    for name in ("deep", "flat"):
        said = (deeper if name == "deep" else flatter).execs
        assert said and all(argv[-1] == name.encode() for argv in said if b"echo" in argv), said
        assert sum(b"echo" in argv for argv in said) >= 2
    for place in (v2_root(), *(mount for mount in Path("/sys/fs/cgroup").iterdir() if mount.is_dir())):
        for folder in ("a/b/c", "a/b", "a", ""):
            if (place / top[1:] / folder).is_dir():
                (place / top[1:] / folder).rmdir()


async def test_the_record_of_a_container_that_ended_is_whole(client, daemon, witness):
    with running(client, "/bin/busybox sleep 0.8; /bin/busybox echo last") as container:
        async with attach(witness, container.id, docker_host=daemon.host) as attached:
            await attached.until_ended()
            evidence = await seal(attached)
    assert evidence.execs[-1] == (b"/bin/busybox", b"echo", b"last")
    exits = [record.pid for record in evidence.records if record.kind is Kind.EXIT]
    assert exits[-1] == container.attrs["State"]["Pid"]
    assert evidence.coverage["complete"], evidence.coverage["reason"]


@pytest.fixture(scope="module")
def second(daemon, tmp_path_factory) -> Iterator[Any]:
    """A tracerd that may be killed, serves nobody too, and knows where Docker is."""
    from witness_daemon import Daemon

    own = Daemon(tmp_path_factory.mktemp("second"))
    own._places[-1] += "-second"
    own._places += ["--allow", str(NOBODY)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.host)
        own.start()
        yield own
    own.stop()
    own.unload()


@pytest.mark.slow
async def test_a_killed_and_restarted_daemon_goes_on_with_an_attached_container(client, second):
    witness = EbpfWitness(second.socket, ask(second.socket))
    with running(client, "i=0; while :; do i=$((i+1)); /bin/busybox true $i; done") as container:
        async with attach(witness, container.id) as attached:
            time.sleep(0.2)
            second.kill()
            time.sleep(0.2)
            second.start()
            time.sleep(0.2)
            evidence = await seal(attached)
        container.reload()
        assert container.status == "running"
    numbers = [int(argv[-1]) for argv in evidence.execs if argv[1:2] == (b"true",)]
    assert len(numbers) > 20 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    sequence = [record.seq for record in evidence.records]
    assert sequence == list(range(1, len(sequence) + 1))


@pytest.mark.slow
def test_a_plain_user_s_socket_attaches_what_carries_their_label(client, second):
    from caisson_proto import tracerd_pb2 as pb
    from caisson_proto import tracerd_pb2_grpc as rpc

    path = second.folder / "run" / str(NOBODY) / "tracerd.sock"
    with (
        running(client, "/bin/busybox sleep 60", labels={"caisson.uid": str(NOBODY)}) as theirs,
        running(client, "/bin/busybox sleep 60") as others,
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):
        stub = rpc.TracerdStub(channel)
        made = stub.Attach(pb.AttachRequest(id="mine", container=theirs.name), timeout=20)
        assert made.container_id == theirs.id and json.loads(made.census_json)["processes"]
        for request in (
            pb.AttachRequest(id="other", container=others.name),
            pb.AttachRequest(id="other", cgroup_path=made.box.cgroup_path),
            pb.AttachRequest(id="other", container=theirs.name, docker_host="unix:///dev/null"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.Attach(request, timeout=20)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        stub.SealBox(pb.SealBoxRequest(id="mine"), timeout=20)
        stub.DropBox(pb.DropBoxRequest(id="mine"), timeout=20)
        theirs.reload()
        assert theirs.status == "running"


def test_a_census_keeps_odd_names_and_says_what_it_cut():
    from caisson_tracerd import census

    cgroup = Cgroup.create(f"census-{os.getpid()}", Limits(), "caisson-attach-test")
    odd = b"odd\n\xff\x1b[31m"
    source = "import os, sys; [os.dup(0) for _ in range(1100)]; print(1, flush=True); sys.stdin.read()"
    words = [b"/bin/sh", b"-c", f'echo $$ > {cgroup.path}/cgroup.procs; exec "$@"'.encode(), b"sh"]
    words += [sys.executable.encode(), b"-c", source.encode(), odd, b""]
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"1\n"
            found = census.take(cgroup.path)
            child.communicate()
    finally:
        cgroup.remove()
    (one,) = found["processes"]
    assert [os.fsencode(word) for word in one["argv"][-2:]] == [odd, b""]
    assert len(one["open"]) == census.MAX_DESCRIPTORS and found["cut"] == ["descriptors"]
    assert any("libc" in path for path in one["mapped"])
    assert json.loads(json.dumps(found)) == found


async def test_a_container_is_attached_once_and_a_box_never(client, daemon, witness):
    with running(client, "/bin/busybox sleep 60") as container:
        async with attach(witness, container.id, docker_host=daemon.host):
            with pytest.raises(WitnessError, match="witnessed already"):
                async with attach(witness, container.name, docker_host=daemon.host):
                    raise AssertionError
        async with witness.watch("attach-box") as watch:
            with pytest.raises(WitnessError, match="box of ours"):
                async with attach(witness, cgroup=str(watch.cgroup)):
                    raise AssertionError


@pytest.mark.parametrize(
    ("cgroup", "reason"),
    [
        ("/", "root cgroup"),
        ("/../../etc", "not below"),
        ("/no/such/place", "does not exist"),
        ("", "say what to attach"),
    ],
)
async def test_foolish_places_are_refused(witness, cgroup, reason):
    with pytest.raises(WitnessError, match=reason):
        async with attach(witness, cgroup=cgroup):
            raise AssertionError


def test_tracerd_never_records_itself():
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    if own != "/":
        with pytest.raises(UsageError, match="tracerd itself"):
            daemon_side.find("", own, "", 0, Layout())
    cgroup = Cgroup.create(f"own-{os.getpid()}", Limits(), "caisson-attach-test")
    inside = (
        "import sys; from caisson_tracerd import attach, layout; attach.find('', sys.argv[1], '', 0, layout.Layout())"
    )
    words = ["/bin/sh", "-c", f'echo $$ > {cgroup.path}/cgroup.procs; exec "$@"', "sh", sys.executable, "-c", inside]
    try:
        done = subprocess.run([*words, str(cgroup.path.parent)], capture_output=True, text=True)
    finally:
        cgroup.remove()
    assert "holds tracerd itself" in done.stderr, done.stderr


def test_a_plain_user_attaches_containers_with_their_label_alone(client, daemon, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    nobody = NOBODY
    with (
        running(client, "/bin/busybox sleep 60", labels={"caisson.uid": str(nobody)}) as theirs,
        running(client, "/bin/busybox sleep 60", labels={"caisson.uid": "0"}) as others,
    ):
        found = daemon_side.find(theirs.name, "", "", nobody, Layout())
        assert found.container == theirs.id and found.path.name.find(theirs.id) >= 0
        with pytest.raises(NotYours, match=f"--label caisson.uid={nobody}"):
            daemon_side.find(others.id, "", "", nobody, Layout())
        with pytest.raises(NotYours, match="only root may attach to a cgroup"):
            daemon_side.find("", str(found.path), "", nobody, Layout())
        with pytest.raises(NotYours, match="only root may name another"):
            daemon_side.find(theirs.id, "", daemon.host, nobody, Layout())
        for odd in ("../../etc", "a b", "-x", "x" * 200, "a/json?x="):
            with pytest.raises(UsageError, match="no name and no id"):
                daemon_side.find(odd, "", "", 0, Layout())
        with pytest.raises(UsageError, match="knows no container"):
            daemon_side.find("nosuch", "", "", 0, Layout())
        theirs.kill()
        theirs.wait()
        with pytest.raises(UsageError, match="not running"):
            daemon_side.find(theirs.id, "", "", 0, Layout())


def command(tracerd, daemon, *words: str) -> subprocess.Popen[str]:
    environment = {
        **daemon.environment,
        "CAISSON_TRACERD_SOCKET": str(tracerd.socket),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    arguments = [sys.executable, "-m", "caisson_runner", *words]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["time", "stopped", "container ended"])
def test_the_command_leaves_a_bundle_that_says_from_when_on_it_is_a_record(client, daemon, tracerd, tmp_path, how):
    name = f"odd-{how.replace(' ', '-')}-{os.getpid()}"
    rounds = 60 if how == "container ended" else 1000
    script = f"exec 7</bin/busybox; i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); /bin/busybox usleep 50000; done"
    with running(client, script, name=name) as container:
        words = ["attach", name, "-o", str(tmp_path / "out"), *(("--for", "0.5") if how == "time" else ())]
        child = command(tracerd, daemon, *words)
        if how == "stopped":
            time.sleep(2.5)
            child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=30)
        assert child.returncode == 0, stderr
        container.reload()
        assert (container.status == "running") == (how != "container ended")
    bundle = Bundle.open(tmp_path / "out", verify=True)
    said = bundle.json("attach.json")
    assert said["ended"] == how and said["container"] == {"id": container.id, "name": name}
    assert said["since"]["boottime_ns"] < said["until"]["boottime_ns"]
    init = next(one for one in said["already"]["processes"] if one["inner_pid"] == 1)
    assert [unescape(word).decode() for word in init["argv"]] == [*SH, script]
    assert 7 in {file["fd"] for file in init["open"]}
    assert any("before it was attached" in line for line in bundle.json("coverage.json")["limits"])
    assert min(record.time_ns for record in bundle.records()) >= said["since"]["boottime_ns"] - 50_000_000
    shown = command(tracerd, daemon, "bundle", "show", str(tmp_path / "out")).communicate()[0]
    assert "what it did before is not in this record" in shown and said["since"]["wall"] in shown
    machine = json.loads(command(tracerd, daemon, "bundle", "show", "--json", str(tmp_path / "out")).communicate()[0])
    assert machine["attached"]["already"]["processes"]
    assert "then " in stdout


def test_no_bundle_is_left_when_nothing_could_be_attached(client, daemon, tracerd, tmp_path):
    child = command(tracerd, daemon, "attach", "nosuch", "-o", str(tmp_path / "out"))
    _, stderr = child.communicate(timeout=30)
    assert child.returncode != 0 and "knows no container nosuch" in stderr and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_tracerd_attach_says_what_ran_then_and_counts_what_came(client, daemon, tracerd, tmp_path):
    from caisson_proto.record import decode

    line = "while :; do /bin/busybox true; /bin/busybox usleep 50000; done"
    with running(client, line) as container:
        words = [sys.executable, "-m", "caisson_tracerd.cli", "attach", container.name, "--for", "0.6", "--json"]
        words += ["-o", str(tmp_path / "records"), "--docker-host", daemon.host, *tracerd._places]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        container.reload()
        assert container.status == "running"
    said = json.loads(done.stdout)
    assert f"{container.name}: recorded since {said['since_boottime_ns']} ns after boot" in done.stderr
    assert "busybox sh -c" in done.stderr
    records = list(decode((tmp_path / "records").read_bytes()))
    found = sum(record.kind is Kind.EXEC for record in records)
    assert said["counts"]["exec"] == {"seen": found, "delivered": found, "lost": 0} and found > 3
    words = [sys.executable, "-m", "caisson_tracerd.cli", "attach", "nosuch", *tracerd._places]
    again = subprocess.run(
        [*words, "--docker-host", daemon.host], env=environment, capture_output=True, text=True, timeout=30
    )
    assert again.returncode == 3 and "knows no container nosuch" in again.stderr and "Traceback" not in again.stderr
