"""Starting, joining, ending: the gate, commands in a running box, and what is left when somebody dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from caisson_runner.boxes import owner
from caisson_runner.boxes.engine import Command, Outcome
from caisson_runner.boxes.errors import BoxGone, BoxStartFailed, RequestError, ToolMissing
from caisson_runner.boxes.holder.room import PLACES
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store


def mounts() -> set[str]:
    """What a box could have left in this mount namespace; others on the host mount and unmount too."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = tuple(place.decode() for place in PLACES)
    return {line for line in lines if line.split()[4].startswith(places) or " - overlay " in line}


def exists(pid: int) -> bool:
    return owner.start_time(pid) is not None


async def test_process_waits_at_its_gate_inside_the_box_until_admitted(engine, snapshot, sh, root):
    seen: dict[str, object] = {}

    async def admit(pid: int) -> None:
        seen["pid"] = pid
        seen["namespace"] = str(Path(f"/proc/{pid}/ns/pid").readlink()) if root else ""
        status = Path(f"/proc/{pid}/status").read_text()
        seen["inner"] = next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]
        await asyncio.sleep(0.2)
        seen["exists"] = await box.processes()

    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/bin/touch", "/app/ran")), admit=admit)
        assert process.pid == seen["pid"]
        assert seen["inner"] and seen["inner"][0] == str(process.pid)
        assert (await process.wait()).ok
        if root:
            assert seen["namespace"] != str(Path("/proc/self/ns/pid").readlink())


async def test_refused_admission_starts_nothing(engine, snapshot):
    async def admit(pid: int) -> None:
        raise RuntimeError("no")

    async with engine.fork(snapshot) as box:
        with pytest.raises(RuntimeError):
            await box.start(Command(("/bin/touch", "/app/ran")), admit=admit)
        assert await box.diff() == []
        assert await box.processes() == []


async def test_second_command_joins_the_running_box_under_the_same_rules(engine, snapshot, sh):
    async with engine.fork(snapshot) as box:
        first = await box.start(Command(("/bin/sh", "-c", "echo a > /tmp/a; exec sleep 60")))
        done = await (
            await box.exec(Command(("/bin/sh", "-c", "sleep 0.2; cat /tmp/a; ps -e -o args=; grep -c . /proc/net/dev")))
        ).wait()
        assert done.stdout.startswith(b"a\n") and b"sleep 60" in done.stdout
        same = await (await box.exec(Command(("/bin/grep", "-E", "^(Cap|NoNew|Seccomp)", "/proc/self/status")))).wait()
        assert b"CapBnd:\t0000000000000000" in same.stdout and b"Seccomp:\t2" in same.stdout
        assert {pid for pid, _ in await box.processes()} == {first.pid}
        await box.kill()
        assert (await first.wait()).outcome is Outcome.KILLED
        assert (await sh(box, "cat /tmp/a")).stdout == b"a\n"  # the box outlives its processes


async def test_missing_program_and_folder_are_ends_not_errors(engine, snapshot):
    async with engine.fork(snapshot) as box:
        done = await (await box.start(Command(("no-such-program",)))).wait()
        assert (done.exit_code, done.detail) == (127, "no-such-program: No such file or directory")
        done = await (await box.start(Command(("/etc/passwd",)))).wait()
        assert (done.exit_code, done.detail) == (126, "/etc/passwd: Permission denied")
        done = await (await box.start(Command(("true",), cwd="/nowhere"))).wait()
        assert (done.exit_code, done.detail) == (127, "working directory /nowhere: No such file or directory")


async def test_odd_bytes_and_long_arguments_arrive(engine, snapshot):
    odd = b"\xff\n\x1b[0m "
    async with engine.fork(snapshot) as box:
        done = await (await box.start(Command(("/usr/bin/printf", "%s", odd, "x" * 100_000, b"", b"end")))).wait()
    assert done.stdout == odd + b"x" * 100_000 + b"end"


async def test_a_process_that_hides_is_listed_all_the_same(engine, snapshot, sh):
    hide = "import ctypes, time; prctl = ctypes.CDLL(None).prctl; prctl(4, 0); prctl(15, b'(x) Z')"
    source = f"{hide}; print(1, flush=True); time.sleep(60)"
    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/usr/bin/python3", "-c", source), stdin_pipe=True))
        assert await process.stdout.readline() == b"1\n"
        assert [pid for pid, _ in await box.processes()] == [process.pid]


async def test_pipe_protocol_over_stdin_and_stdout(engine, snapshot):
    async with engine.fork(snapshot) as box:
        process = await box.start(
            Command(("/usr/bin/python3", "-uc", "for line in open(0): print(line.upper(), end='')"), stdin_pipe=True)
        )
        for word in (b"one\n", b"two\n"):
            process.stdin.write(word)
            assert await process.stdout.readline() == word.upper()
        process.stdin.close()
        assert (await process.wait()).ok


async def test_wrap_runs_a_tracer_outside_around_the_launcher(engine, snapshot, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    log = tmp_path / "trace"
    wrap = ("strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=execve,openat", "-o", str(log))
    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/bin/sh", "-c", "cat kept.txt; exit 5")), wrap=wrap)
        done = await process.wait()
        assert (done.exit_code, done.stdout) == (5, b"kept\n"), done
        assert await box.processes() == []
    lines = [line for line in log.read_text().splitlines() if line.split()[0] == str(process.pid)]
    first = next(line for line in lines if "execve" in line)
    assert 'execve("/bin/sh"' in first
    assert '"kept.txt"' in log.read_text()


@pytest.mark.root
async def test_box_uses_the_cgroup_a_witness_made(engine, snapshot, root, kind):
    if not root:
        pytest.skip("needs root to make a cgroup")
    from caisson_tracerd.cgroup import Cgroup, Limits

    cgroup = Cgroup.create(f"given-{os.getpid()}", Limits(256 << 20, 20, 0))
    try:

        async def admit(pid: int) -> None:
            if pid not in cgroup.pids():
                cgroup.add(pid)

        async with engine.fork(snapshot, cgroup=cgroup.path) as box:
            process = await box.start(Command(("/bin/sh", "-c", "sleep 60 & sleep 61")), admit=admit)
            await asyncio.sleep(0.2)
            # docker: the container's cgroup lies below the given one, so its init is in there too
            init = {box.init_pid} if kind == "docker" else set()
            assert set(cgroup.pids()) == {pid for pid, _ in await box.processes()} | init
            await box.freeze()
            assert cgroup.frozen
            await box.thaw()
            bomb = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done"
            done = await (await box.exec(Command(("/bin/sh", "-c", bomb)), admit=admit)).wait()
            assert done.outcome is Outcome.PIDS
            await process.kill()
        assert cgroup.path.exists()  # it is the witness's to remove
    finally:
        cgroup.remove()


async def test_box_ids_are_checked_and_unique(engine, snapshot):
    for bad in ("../x", "UPPER", "", "a" * 65):
        with pytest.raises(RequestError):
            async with engine.fork(snapshot, box_id=bad or "_"):
                raise AssertionError
    async with engine.fork(snapshot, box_id="twice"):
        with pytest.raises(RequestError, match="exists"):
            async with engine.fork(snapshot, box_id="twice"):
                raise AssertionError
    async with engine.fork(snapshot, box_id="twice") as box:
        await box.drop()
        await box.drop()
        with pytest.raises(BoxGone):
            await box.start(Command(("true",)))


async def test_cancelling_at_any_moment_leaves_nothing(engine, snapshot, store, root):
    before = mounts()

    async def session() -> None:
        async with engine.fork(snapshot) as box:
            process = await box.start(Command(("/bin/sleep", "60")))
            await process.wait()

    for step in range(12):
        task = asyncio.create_task(session())
        await asyncio.sleep(step * 0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list((store.home / "boxes").iterdir()) == []
    assert mounts() == before


async def test_many_boxes_side_by_side(engine, snapshot, sh):
    async def one(number: int) -> bytes:
        async with engine.fork(snapshot) as box:
            return (await sh(box, f"echo {number} >> kept.txt; cat kept.txt")).stdout

    results = await asyncio.gather(*(one(number) for number in range(16)))
    assert results == [b"kept\n%d\n" % number for number in range(16)]


async def test_death_of_the_holder_is_a_clear_end(engine, snapshot):
    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/bin/sleep", "60")))
        os.kill(int(Path(f"/proc/{box.init_pid}/status").read_text().split("PPid:")[1].split()[0]), signal.SIGKILL)
        done = await asyncio.wait_for(process.wait(), 10)
        assert done.outcome in (Outcome.LOST, Outcome.SIGNALED)
        await asyncio.sleep(0.2)
        assert not exists(process.pid)
        with pytest.raises((BoxGone, BoxStartFailed)):
            await box.start(Command(("true",)))


RUNNER = """
import asyncio, pathlib, sys
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.holder.room import PLACES
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
async def main():
    async with LocalEngine(Store(pathlib.Path(sys.argv[1]))) as engine:
        snapshot = await engine.snapshot(SnapshotSpec())
        async with engine.fork(snapshot, box_id="orphan-" + sys.argv[2]) as box:
            process = await box.start(Command(("/bin/sh", "-c", "trap '' TERM HUP INT; sleep 300 & sleep 301")))
            await asyncio.sleep(0.3)
            if sys.argv[3] == "frozen": await box.freeze()
            print(box.init_pid, *[pid for pid, _ in await box.processes()], flush=True)
            await asyncio.sleep(300)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["running", "frozen"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_killed_runner_leaves_no_process_mount_or_cgroup(tmp_path, number, state, root):
    before, home = mounts(), tmp_path / "store"
    token = f"{os.getpid()}-{int(number)}-{state}"
    arguments = [sys.executable, "-c", textwrap.dedent(RUNNER), str(home), token, state]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as child:
        pids = [int(word) for word in child.stdout.readline().split()]
        assert len(pids) == 4 and all(map(exists, pids))
        parents = [int(Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0]) for pid in pids[:1]]
        child.send_signal(number)
        child.wait()
    deadline = time.monotonic() + 10
    while (any(map(exists, [*pids, *parents])) or list((home / "boxes").iterdir())) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not any(map(exists, [*pids, *parents]))
    assert mounts() == before
    assert list((home / "boxes").iterdir()) == []
    if root:
        from caisson_tracerd.cgroup import v1_roots, v2_root

        for place in (v2_root(), *v1_roots().values()):
            assert not (place / "caisson" / "own" / f"orphan-{token}").exists()


async def test_next_runner_sweeps_what_a_power_cut_left(tmp_path, root):
    store = Store(tmp_path / "store")
    dead = store.home / "boxes/dead"
    dead.mkdir()
    cgroup = ""
    if root:
        from caisson_tracerd.cgroup import Cgroup, Limits

        made = Cgroup.create(f"swept-{os.getpid()}", Limits(1 << 30, 10, 0))
        cgroup = str(made.path)
    (dead / "owner.json").write_text(f'{{"owner": "00000000-1-1", "snapshot": "x", "cgroup": "{cgroup}"}}')
    (store.home / "layers/.new-00000000-1-1-abc").mkdir()
    (store.home / "boxes/.new-00000000-1-1-half").mkdir()
    (store.home / "boxes/alive").mkdir()
    owner.write(store.home / "boxes/alive", "x", "")
    async with LocalEngine(store) as engine:
        await engine.snapshot(SnapshotSpec())
    assert [path.name for path in (store.home / "boxes").iterdir()] == ["alive"]
    assert not list((store.home / "layers").glob(".new-*"))
    if cgroup:
        assert not Path(cgroup).exists()


async def test_missing_bubblewrap_is_one_clear_line(store, monkeypatch):
    from caisson_runner.boxes import local

    monkeypatch.setattr(local.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ToolMissing, match="apt-get install bubblewrap"):
        async with LocalEngine(store):
            raise AssertionError


async def test_host_without_user_namespaces_is_one_clear_line(store, root):
    if not shutil.which("unshare"):
        pytest.skip("util-linux's unshare is not installed")
    program = "from caisson_runner.boxes.probe import probe; print([r.detail for r in probe() if r.name == 'box'])"
    # a user namespace of our own, in which no further one may be made
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"
    line = ["unshare", "-Ur", "sh", "-c", f'{limit} && exec "$@"', "sh", sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CAISSON_HOME": str(store.home)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    if "max_user_namespaces" in done.stderr:
        pytest.skip(f"the limit cannot be set here: {done.stderr.strip()}")
    assert "this host refuses user namespaces" in done.stdout, done


def test_probe_says_what_the_host_offers():
    from caisson_runner.boxes.probe import probe

    found = {requirement.name: requirement for requirement in probe()}
    assert set(found) == {"bubblewrap", "seccomp", "cgroups", "store", "box"}
    assert found["box"].ok, found["box"]
    assert all(requirement.ok or requirement.remedy for requirement in found.values())
