"""What fails closes: a gate that is killed leaves no way out, and what it had recorded stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from caisson_gate import client
from caisson_gate.client import GateLost, GateProcess, GateRefused, Opening
from caisson_gate.errors import GateError
from caisson_gate.rights import GATE_UID
from caisson_runner.boxes import listeners
from caisson_runner.boxes.errors import RequestError
from caisson_runner.boxes.store import SnapshotSpec
from gate_rig import WEB, Rig, dump
from http_rig import hello

LIMIT_S = 60.0


async def until(condition) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.02)


async def test_a_killed_gate_leaves_no_way_out_and_all_that_was_recorded(rig: Rig, nonce: str):
    async with rig.world.upstream("web.test", hello, tls=False) as upstream, rig.process() as process:
        async with rig.boxed(process) as boxed:
            done = await boxed.sh(f"curl -sS http://web.test/{nonce}")
            assert done.ok
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.wait_for(asyncio.shield(process.lost), LIMIT_S)
            done = await boxed.sh("curl -sS http://198.18.1.0/; curl -sS http://web.test/; curl -sS https://192.0.2.1/")
            assert done.stdout == b""
            assert done.stderr.count(b"refused") + done.stderr.count(b"resolve") + done.stderr.count(b"connect") >= 3
            with pytest.raises(GateLost, match="SIGKILL"):
                await boxed.gate.close()
            assert upstream.connections == 1
            assert [one["url"] for one in boxed.events("http")] == [f"http://web.test/{nonce}"]


async def test_connections_that_are_open_when_the_gate_is_killed_end(local_rig: Rig):
    async with local_rig.world.upstream("web.test", hello, tls=False), local_rig.process() as process:
        async with local_rig.boxed(process) as boxed:
            source = """
import socket
s = socket.create_connection(("web.test", 80))
s.sendall(b"GET / HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n")
s.recv(1000)
open("/tmp/connected", "w").close()
try:
    while s.recv(1000): pass
except ConnectionResetError:
    pass
"""
            running = asyncio.create_task(boxed.run("/usr/bin/python3", "-c", source))
            while (await boxed.sh("test -e /tmp/connected")).exit_code:
                await asyncio.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            assert (await asyncio.wait_for(running, LIMIT_S)).ok


async def test_a_broken_policy_is_refused_before_there_is_a_box_and_by_its_line(local_rig: Rig):
    async with local_rig.process() as process:
        with pytest.raises(GateError, match=r"mine\.toml:2: allow\[0\]"):
            await process.check(b'schema = "caisson.gate/v1"\n[[allow]]\nhsots = ["a.test"]\n', "mine.toml")
        with pytest.raises(GateError, match="stays closed"):
            await process.check(b"", "mine.toml")
        assert 80 in await process.check(WEB.encode(), "mine.toml")


async def test_a_box_that_cannot_be_opened_stays_closed_and_keeps_no_listener(local_rig: Rig):
    async with local_rig.process() as process:
        snapshot = await local_rig.engine.snapshot(SnapshotSpec())
        async with local_rig.engine.fork(snapshot, network="gate") as box:
            made = await listeners.listen(box, [80])
            missing = local_rig.folder / "not-there"
            opening = Opening(box.id, "r", WEB.encode(), "p.toml", missing)
            with pytest.raises(GateError):
                await process.open(opening, [(one.about, one.descriptor) for one in made])
            listeners.close(made)
            open_now = Path(f"/proc/{process.pid}/net/tcp").read_text()
            assert open_now  # the process lives on, and serves others
            from caisson_runner.boxes.engine import Command

            done = await (await box.start(Command(("/bin/sh", "-c", "curl -sS http://192.0.2.1/")))).wait()
            assert b"connect" in done.stderr


async def test_a_box_without_network_cannot_be_opened(local_rig: Rig):
    snapshot = await local_rig.engine.snapshot(SnapshotSpec())
    async with local_rig.engine.fork(snapshot) as box:
        with pytest.raises(RequestError, match="network"):
            await listeners.listen(box, [80])


async def test_a_gate_that_cannot_start_says_why(local_rig: Rig):
    process = GateProcess(local_rig.folder / "g", run="r", resolve=["no-address"])
    with pytest.raises(GateError, match="NAME=ADDRESS"):
        async with process:
            pass
    assert not (local_rig.folder / "g").exists()


async def test_a_file_of_authorities_that_holds_none_is_the_users_mistake(local_rig: Rig, tmp_path: Path):
    empty = tmp_path / "none.pem"
    empty.write_text("no certificate\n")
    with pytest.raises(GateRefused, match=r"none\.pem: holds no certificate; name a PEM file$"):
        async with GateProcess(local_rig.folder / "g", run="r", upstream_ca=empty):
            pass


RUNNER = """
import asyncio, sys
from pathlib import Path
from caisson_gate.client import GateProcess, Opening
from caisson_runner.boxes import listeners
from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
home, out = Path(sys.argv[1]), Path(sys.argv[2])
POLICY = b'''@'''
async def main():
    async with LocalEngine(Store(home)) as engine, GateProcess(home / "g", run="r") as gate:
        snapshot = await engine.snapshot(SnapshotSpec())
        async with engine.fork(snapshot, network="gate") as box:
            made = await listeners.listen(box, await gate.check(POLICY, "p"))
            await gate.open(Opening(box.id, "r", POLICY, "p", out), [(m.about, m.descriptor) for m in made])
            listeners.close(made)
            process = await box.start(Command(("/bin/sh", "-c", "curl -s http://192.0.2.7/; sleep 600")))
            print(gate.pid, box.init_pid, flush=True)
            await process.wait()
asyncio.run(main())
"""


async def test_nothing_is_left_when_the_runner_is_killed(local_rig: Rig, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    home = local_rig.engine.store.home
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER.replace("@", WEB), str(home), str(out)],
        stdout=subprocess.PIPE,
    )
    assert runner.stdout is not None
    pids = [int(word) for word in (await asyncio.to_thread(runner.stdout.readline)).split()]
    assert len(pids) == 2
    journal = out / "events.jsonl"
    await until(lambda: b"192.0.2.7" in journal.read_bytes())
    runner.kill()
    runner.wait()
    runner.stdout.close()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    kinds = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert kinds[-1]["what"] == "the runner is gone"


@pytest.mark.root
async def test_a_gate_of_root_is_no_root_while_it_serves_and_leaves_its_files_to_root(local_rig: Rig):
    if os.geteuid() != 0:
        pytest.skip("this run is a plain user's: the gate is the user")
    async with local_rig.world.upstream("web.test", hello), local_rig.process() as process:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert set(status["Uid"].split()) == {str(GATE_UID)}
        assert status["Groups"].strip() == ""
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 1 << 2
        assert int(status["CapBnd"], 16) == int(status["CapInh"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        async with local_rig.boxed(process, record=True) as boxed:
            assert (await boxed.sh("curl -sS https://web.test/")).ok
            await boxed.closed()
            owners = {path.stat().st_uid for path in (boxed.folder, *boxed.folder.rglob("*"))}
    assert owners == {0}


async def test_a_full_journal_closes_the_box_and_says_so(local_rig: Rig, monkeypatch: pytest.MonkeyPatch):
    small = (sys.executable, "-c", "import caisson_gate.process as p; p.JOURNAL_BYTES = 20_000; p.main()")
    monkeypatch.setattr(GateProcess, "command", small)
    async with local_rig.world.upstream("web.test", hello, tls=False) as upstream, local_rig.one() as boxed:
        await boxed.sh("for n in $(seq 40); do curl -sS -m 20 http://web.test/; done")
        reached = upstream.connections
        done = await boxed.sh("curl -sS -m 20 http://web.test/")
        events = await boxed.closed()
    assert 1 <= reached < 40
    assert upstream.connections == reached
    assert not done.ok
    said = [one.get("what") for one in events if one["kind"] == "gate" and "what" in one]
    assert said == ["opened", "the journal is full", "closed"], dump(events[-4:])


async def test_a_gate_that_hangs_is_lost_and_a_slow_one_is_waited_for(local_rig: Rig, monkeypatch: pytest.MonkeyPatch):
    slow = "import asyncio, caisson_gate.process as p; whole = p.Gate._close_box\n"
    slow += "async def late(*words):\n    await asyncio.sleep(6)\n    return await whole(*words)\n"
    monkeypatch.setattr(GateProcess, "command", (sys.executable, "-c", slow + "p.Gate._close_box = late; p.main()"))
    async with local_rig.process() as process, local_rig.boxed(process) as first:
        monkeypatch.setattr(client, "ANSWER_S", 4.0)
        await first.gate.close()
        assert first.events()[-1]["what"] == "closed"
        async with local_rig.boxed(process) as second:
            os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(GateLost, match="not answered"):
                await second.gate.close()
            os.kill(process.pid, signal.SIGKILL)
