"""The daemon: loss, restarts, callers, the command line."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import Kind, decode, strip_ring
from caisson_tracerd.layout import is_bpffs, sources
from tracerd_rig import FEWER, SLOW, why_no_trampoline

if TYPE_CHECKING:
    from tracerd_rig import Client, Daemon

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NOBODY = 65534
FLOOD = "import os\nfor _ in range(int(__import__('sys').argv[1])):\n  os.close(os.open('/dev/null', 0))\n"


def flood(opens: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", FLOOD, str(opens)]


def refused(problem: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return problem.value.code(), problem.value.details()


@pytest.fixture
def second(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon of the test's own, to be killed or told to end."""
    import tracerd_rig

    made = tracerd_rig.make_daemon("second")
    yield made
    made.remove()


def test_the_law_of_conservation_holds_when_a_ring_overflows(daemon: Daemon, client: Client) -> None:
    client.create("small", ring_bytes=1 << 16)
    assert daemon.process is not None
    process = client.start("small", flood(60_000 // FEWER))
    daemon.process.send_signal(signal.SIGSTOP)  # nobody drains: the ring must overflow
    try:
        process.communicate(timeout=60 * SLOW)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    counts = client.seal("small")
    records = client.records("small")
    for kind in Kind:
        count = counts[kind.name.lower()]
        assert count.seen == count.delivered + count.dropped_ring + count.dropped_map + count.unreadable
        assert count.delivered == sum(record.kind == kind for record in records)
    assert counts["open"].seen >= 60_000 // FEWER
    assert counts["open"].dropped_ring > 0
    missing = records[-1].seq - len(records)
    assert missing <= sum(count.dropped_ring for count in counts.values())
    assert [record.seq for record in records] == sorted({record.seq for record in records})


def test_a_ring_of_the_usual_size_keeps_up_with_a_busy_box(client: Client) -> None:
    client.create("busy")
    client.run("busy", flood(40_000 // FEWER))
    counts = client.seal("busy")
    assert sum(count.dropped_ring for count in counts.values()) == 0
    assert counts["open"].delivered >= 40_000 // FEWER


def test_neighbour_loses_nothing_when_a_box_floods(client: Client, daemon: Daemon) -> None:
    client.create("noisy", ring_bytes=1 << 16)
    client.create("quiet", ring_bytes=1 << 20)
    noisy = client.hold("noisy", flood(100_000 // FEWER))
    quiet = client.hold("quiet", ["/bin/sh", "-c", "for i in 1 2 3 4 5; do /bin/true; done; exit"])
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)  # so that the noisy ring runs over on any machine
    try:
        client.go(noisy)
        client.go(quiet)
        noisy.wait(60 * SLOW)
        quiet.wait(60 * SLOW)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    lost, kept = client.seal("noisy"), client.seal("quiet")
    assert lost["open"].dropped_ring > 0
    assert lost["open"].seen == lost["open"].delivered + lost["open"].dropped_ring
    assert sum(count.dropped_ring for count in kept.values()) == 0
    assert (kept["exec"].seen, kept["exec"].delivered, kept["exit"].delivered) == (6, 6, 6)


def test_a_follower_sees_the_record_grow_and_ends_with_the_seal(client: Client, daemon: Daemon) -> None:
    client.create("box")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(daemon.client().journal("box", follow=True)))
    reader.start()
    client.run("box", ["/bin/true"])
    time.sleep(0.2)
    client.run("box", ["/bin/true"])
    client.seal("box")
    reader.join(10 * SLOW)
    assert not reader.is_alive()
    assert got == [client.journal("box")]
    whole = got[0]
    assert client.journal("box", offset=len(whole) - 8) == whole[-8:]


def test_a_follower_of_a_dropped_box_ends_and_reads_nobody_elses_journal(client: Client, daemon: Daemon) -> None:
    client.create("box")
    client.run("box", ["/bin/true", "mine"])
    stream = daemon.client().stub.ReadJournal(pb.ReadJournalRequest(id="box", follow=True), timeout=20 * SLOW)
    data = next(iter(stream)).data
    client.drop("box")
    client.create("other")
    client.run("other", ["/bin/true", "not yours"])
    rest = b"".join(part.data for part in stream)
    assert b"not yours" not in data + rest
    assert b"mine" in data


def test_a_running_box_can_be_sealed_and_runs_on(client: Client) -> None:
    box = client.create("box").box
    process = client.start("box", ["/bin/sh", "-c", "while :; do /bin/true; done"])
    time.sleep(0.2)
    counts = client.seal("box")
    assert counts["exec"].seen == counts["exec"].delivered == sum(r.kind == Kind.EXEC for r in client.records("box"))
    before = client.journal("box")
    time.sleep(0.1)
    assert process.poll() is None
    assert client.journal("box") == before
    assert "frozen 0" in (Path(box.cgroup_path) / "cgroup.events").read_text()
    assert client.seal("box") == counts
    with pytest.raises(grpc.RpcError) as problem:
        client.start("box", ["true"])
    assert refused(problem)[0] == grpc.StatusCode.FAILED_PRECONDITION
    client.drop("box")
    assert process.wait(5 * SLOW) == -signal.SIGKILL
    assert not Path(box.cgroup_path).exists()


def test_a_killed_daemon_comes_back_and_nothing_is_lost(second: Daemon) -> None:
    second.start()
    client = second.client()
    client.create("box")
    client.create("sealed")
    client.run("sealed", ["/bin/true"])
    counts, whole = client.seal("sealed"), client.journal("sealed")
    process = client.start("box", ["/bin/sh", "-c", "for i in 1 2 3 4 5 6; do /bin/true; sleep 0.1; done"])
    time.sleep(0.15)
    second.stop(signal.SIGKILL)
    process.wait(10 * SLOW)  # these ran with no daemon at all
    second.start()
    client = second.client()
    assert client.seal("sealed") == counts
    assert client.journal("sealed") == whole
    after = client.seal("box")
    records = client.records("box")
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert sum(count.seen for count in after.values()) == len(records)
    assert sum(record.kind == Kind.EXEC and record.argv == (b"/bin/true",) for record in records) == 6
    assert "another version" not in second.log.read_text()
    client.drop("box")
    client.drop("sealed")


def test_a_journal_cut_off_in_a_write_is_mended(second: Daemon) -> None:
    second.start()
    client = second.client()
    client.create("box")
    client.run("box", ["/bin/true"])
    time.sleep(0.2)
    second.stop(signal.SIGKILL)
    (journal,) = (second.root / "state").glob("boxes/0/box/journal.bin")
    with open(journal, "ab") as file:
        file.write(b"half of a record")
    second.start()
    client = second.client()
    client.run("box", ["/bin/true"])
    counts = client.seal("box")
    assert sum(count.seen for count in counts.values()) == len(client.records("box"))


def test_unload_on_exit_leaves_nothing(second: Daemon) -> None:
    second.options = ("--unload-on-exit",)
    second.start()
    client = second.client()
    path = Path(client.create("box").box.cgroup_path)
    process = client.start("box", ["sleep", "60"])
    assert is_bpffs(second.run_dir / "bpf") or is_bpffs(Path("/sys/fs/bpf"))
    assert second.stop() == 0
    assert process.wait(5 * SLOW) == -signal.SIGKILL
    assert not path.parents[1].exists()
    assert [file.name for file in second.root.iterdir()] == ["log"]
    assert not is_bpffs(second.run_dir / "bpf")


def test_pins_stay_without_that_option_and_unload_removes_them(second: Daemon) -> None:
    second.start()
    assert second.stop() == 0
    assert "tracerd unload" in second.log.read_text()
    manifest = json.loads((second.run_dir / "manifest.json").read_text())
    assert (Path(manifest["pins"]) / "link_sys_exit").exists()
    done = subprocess.run(second.command("load", "--json"), capture_output=True, check=True)
    assert json.loads(done.stdout) == manifest
    subprocess.run(second.command("unload"), check=True, capture_output=True)
    assert not Path(manifest["pins"]).exists()
    assert not is_bpffs(second.run_dir / "bpf")


def test_programs_that_read_garbage_are_refused(second: Daemon) -> None:
    """The sources with one offset wrong: they compile and load, and the daemon does not serve."""
    wrong = second.root / "bpf"
    shutil.copytree(sources(), wrong)
    header = wrong / "lib" / "build.h"
    text = header.read_text().replace(
        "READ(rec->start_ns, task_struct, leader, start_boottime)",
        "READ(rec->start_ns, task_struct, leader, start_time)",
    )
    text = text.replace("READ(rec->ppid, task_struct, parent, tgid)", "READ(rec->ppid, task_struct, parent, pid)")
    assert text != header.read_text()
    header.write_text(text.replace("(u32)bpf_get_current_pid_tgid", "bpf_get_current_pid_tgid"))
    connect = wrong / "connect.h"
    connect.write_text(connect.read_text().replace("rec->arg[0] = family;", "rec->arg[0] = family + 1;"))
    code = (
        "import sys, pathlib\nfrom caisson_tracerd import layout\n"
        "folder = pathlib.Path(sys.argv.pop(1))\nlayout.sources = lambda: folder\n"
        "from caisson_tracerd.cli import main\nmain()"
    )
    command = [sys.executable, "-c", code, str(wrong), "serve", *second.places, "--unload-on-exit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("tracerd: self-test: record ")
    assert "ready" not in done.stderr


def test_pins_of_another_build_of_the_same_layout_serve_as_long_as_boxes_depend_on_them(second: Daemon) -> None:
    second.start()
    client = second.client()
    client.create("box")
    second.stop(signal.SIGKILL)
    manifest = second.run_dir / "manifest.json"
    found = json.loads(manifest.read_text())
    found["sources"]["open.h"] = "0" * 64
    manifest.write_text(json.dumps(found))
    second.start()
    assert "programs of another build stay" in second.log.read_text()
    client = second.client()
    client.run("box", ["/bin/true"])
    assert client.seal("box")["exec"].delivered == 1
    client.drop("box")
    second.stop()
    second.start()
    assert "loaded anew" in second.log.read_text()


def test_pins_of_another_layout_are_replaced_unless_a_box_depends_on_them(second: Daemon) -> None:
    second.start()
    second.client().create("box")
    second.stop(signal.SIGKILL)
    manifest = second.run_dir / "manifest.json"
    found = json.loads(manifest.read_text())
    found["sources"]["record.h"] = "0" * 64
    manifest.write_text(json.dumps(found))
    done = subprocess.run(second.command("serve"), capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 3
    assert "another version" in done.stderr
    assert "box" in done.stderr.splitlines()[-1]
    shutil.rmtree(second.root / "state" / "boxes")
    second.start()
    assert "loaded anew" in second.log.read_text()


def test_a_second_daemon_in_the_same_place_is_refused(daemon: Daemon) -> None:
    done = subprocess.run(daemon.command("serve"), capture_output=True, text=True, timeout=30 * SLOW)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "another tracerd serves" in done.stderr


def test_health_is_served(daemon: Daemon) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    stub = health_pb2_grpc.HealthStub(daemon.client().channel)
    for name in ("", "caisson.v1.Tracerd"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5 * SLOW)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_daemon_says_what_it_is(client: Client) -> None:
    info = client.stub.GetInfo(pb.GetInfoRequest(), timeout=5 * SLOW)
    manifest = json.loads(info.manifest_json)
    assert (info.api, info.tier) == (1, manifest["tier"])
    assert info.tier == ("tracepoint" if why_no_trampoline() else "trampoline")
    assert set(info.hooks) <= set(manifest["bytecode_sha256"])  # and the programs those call
    assert manifest["kernel"] == os.uname().release
    assert len(manifest["sources"]) == len([*sources().rglob("*.h"), *sources().rglob("*.c")])
    now = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert abs(info.boot_wall_ns - now) < 10**9


@pytest.mark.parametrize("box_id", ["", "A", "../x", "a" * 65, "a.b"])
def test_a_bad_box_id_is_refused(client: Client, box_id: str) -> None:
    with pytest.raises(grpc.RpcError) as problem:
        client.create(box_id)
    assert refused(problem)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_box_that_exists_or_does_not_is_told_apart(client: Client) -> None:
    client.create("box")
    with pytest.raises(grpc.RpcError) as problem:
        client.create("box")
    assert refused(problem)[0] == grpc.StatusCode.ALREADY_EXISTS
    with pytest.raises(grpc.RpcError) as problem:
        client.seal("other")
    assert refused(problem)[0] == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as problem:
        client.create("odd", ring_bytes=12345)
    assert refused(problem)[0] == grpc.StatusCode.INVALID_ARGUMENT
    client.drop("other")


def test_limits_reach_the_box(client: Client) -> None:
    answer = client.create("box", limits=pb.Limits(memory_bytes=64 << 20, pids=32))
    assert list(answer.limits_missing) == []
    client.run("box", [sys.executable, "-c", "b = bytearray(256 << 20)"])
    client.seal("box")
    (last,) = [record for record in client.records("box") if record.kind == Kind.EXIT]
    assert last.args[1] == signal.SIGKILL


def as_nobody(daemon: Daemon, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the client code as a plain user."""
    head = f"""
import sys; sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}
import os
from tracerd_rig import Client; from pathlib import Path; import grpc, signal, subprocess
from caisson_proto import tracerd_pb2 as pb
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})  # last: a plain user may not read where we are installed
run = Path({str(daemon.run_dir)!r})
"""
    return subprocess.run([sys.executable, "-c", head + code, *args], capture_output=True, text=True, timeout=60 * SLOW)


def test_the_socket_of_another_user_is_out_of_reach(daemon: Daemon, client: Client) -> None:
    client.create("rootbox")
    code = """
try:
    Client(run / "0" / "tracerd.sock").create("x")
except grpc.RpcError as e: print(e.code().name)
print([box.id for box in Client(run / "65534" / "tracerd.sock").stub.ListBoxes(pb.ListBoxesRequest()).boxes])
"""
    done = as_nobody(daemon, code)
    assert done.stdout.split("\n")[:2] == ["UNAVAILABLE", "[]"], done.stderr
    socket = daemon.run_dir / str(NOBODY) / "tracerd.sock"
    assert (socket.stat().st_mode & 0o777, socket.stat().st_uid) == (0o600, NOBODY)


def test_a_foreign_process_is_refused(daemon: Daemon) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    code = """
client = Client(run / "65534" / "tracerd.sock")
client.create("mine")
for pid in (int(sys.argv[1]), 1, 0, -1, 2**22):
    try:
        client.stub.Admit(pb.AdmitRequest(id="mine", pid=pid))
    except grpc.RpcError as e: print(e.code().name)
client.drop("mine")
"""
    try:
        done = as_nobody(daemon, code, str(victim.pid))
        assert done.stdout.split() == ["PERMISSION_DENIED"] * 2 + ["INVALID_ARGUMENT"] * 3, done.stderr
        assert "mine" not in Path(f"/proc/{victim.pid}/cgroup").read_text()
    finally:
        victim.kill()
        victim.wait()


def test_a_plain_user_is_witnessed_and_may_freeze_and_kill_but_not_thaw_others(daemon: Daemon) -> None:
    code = """
client = Client(run / "65534" / "tracerd.sock")
box = client.create("mine").box
process = client.start("mine", ["/bin/sh", "-c", "while :; do :; done"])
folder = Path(box.cgroup_path)
import time; time.sleep(0.2)
(folder / "cgroup.freeze").write_text("1")
kill = folder / "cgroup.kill"
kill.write_text("1") if kill.exists() else process.kill()  # before Linux 5.14 there is none
print(process.wait(60))
counts = client.seal("mine")
print(sorted({record.uid for record in client.records("mine")}), counts["exec"].delivered)
for name in ("cgroup.procs", "cgroup.subtree_control"):
    try: (folder / name).write_text("0")
    except PermissionError: print("refused")
try: (folder / "child").mkdir()
except PermissionError: print("refused")
client.drop("mine")
print(folder.exists())
"""
    done = as_nobody(daemon, code)
    assert done.stdout.splitlines() == ["-9", f"[{NOBODY}] 1", "refused", "refused", "refused", "False"], done.stderr


def test_a_process_already_in_a_box_is_not_moved(client: Client) -> None:
    client.create("one")
    client.create("two")
    process = client.start("one", ["sleep", "60"])
    with pytest.raises(grpc.RpcError) as problem:
        client.stub.Admit(pb.AdmitRequest(id="two", pid=process.pid))
    assert refused(problem)[0] == grpc.StatusCode.PERMISSION_DENIED
    client.drop("one")
    process.wait(5 * SLOW)


@pytest.mark.parametrize("command", ["serve", "load", "unload"])
def test_a_plain_user_gets_one_line(daemon: Daemon, command: str) -> None:
    code = (
        "import os, sys\nfrom caisson_tracerd import serve\nfrom caisson_tracerd.cli import main\n"
        "os.setgid(65534); os.setuid(65534)\nmain(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, "--run-dir=/nonexistent/run", "--state-dir=/nonexistent/state"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "needs root" in done.stderr


def test_doctor_and_status_speak_to_machines(daemon: Daemon, client: Client) -> None:
    client.create("box")
    doctor = subprocess.run(daemon.command("doctor", "--json"), capture_output=True, check=True)
    assert all(finding["ok"] or not finding["needed"] for finding in json.loads(doctor.stdout))
    status = json.loads(subprocess.run(daemon.command("status", "--json"), capture_output=True, check=True).stdout)
    assert [box["id"] for box in status["boxes"]] == ["box"]
    assert status["manifest"]["tier"] == client.manifest()["tier"]


def test_an_idle_daemon_is_small_and_hardly_runs(daemon: Daemon) -> None:
    assert daemon.process is not None
    folder = Path(f"/proc/{daemon.process.pid}")

    def ticks() -> int:
        return sum(int(word) for word in (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13])

    before = ticks()
    time.sleep(2)
    assert ticks() - before <= 0.1 * os.sysconf("SC_CLK_TCK")
    resident = int((folder / "statm").read_text().split()[1]) * resource.getpagesize()
    assert resident < 120 << 20


def test_the_journal_is_whole_records_at_every_end(client: Client) -> None:
    client.create("box")
    process = client.start("box", flood(20_000 // FEWER))
    while process.poll() is None:
        canonical, rest = strip_ring(client.journal("box"))
        assert rest == b""
        assert sum(1 for _ in decode(canonical)) >= 0
    client.seal("box")
