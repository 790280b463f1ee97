"""Whole runs behind the gate: what is in the bundle, what a recording gives, and what a lost gate makes of a run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from caisson_gate.errors import PolicyError
from caisson_gate.events import read
from caisson_runner.bundle import Bundle
from caisson_runner.bundle.show import show
from caisson_runner.gate import GateOptions
from caisson_runner.results import Result
from caisson_runner.run import run_one
from caisson_runner.session import Session, open_session
from caisson_runner.tasks import Task, load_task, plan_agent
from caisson_runner.tasks.search import scenarios_root
from gate_rig import WEB
from http_rig import World, hello, say

MakeSession = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def session(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> MakeSession:
    """A session whose gate knows the servers the world has by then."""
    monkeypatch.setenv("CAISSON_HOME", str(tmp_path / "home"))

    @asynccontextmanager
    async def make(witness: str = "none", policy: str | None = None, **options: Any) -> AsyncIterator[Session]:
        if policy is not None:
            options["policy"] = tmp_path / "policy.toml"
            options["policy"].write_text(policy)
        resolve = tuple(f"{name}={address}:{port}" for name, (address, port) in world.pins.items())
        gate = GateOptions(resolve=resolve, upstream_ca=world.ca, **options)
        async with open_session(witness, gate=gate) as session:
            yield session
        assert list((tmp_path / "home/gate").glob("*")) == [], "a gate was left behind"

    return make


@pytest.fixture
def task() -> Task:
    return load_task("add-mul")


async def agent(session: Session, task: Task, out: Path, line: str) -> Result:
    """A run whose agent is a shell line."""
    return await run_one(session, task, plan_agent(["sh", "-c", line], task), out.name, out, 1)


SOLVED = 'sed -i "s/a - b/a + b/; s/a + b$/a * b/" impl.py'


@pytest.fixture(params=["strace", pytest.param("ebpf", marks=[pytest.mark.bpf, pytest.mark.root])])
def witness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A witness that knows pids; for eBPF a daemon of the test's own."""
    if request.param == "strace":
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed: without a witness no pid is known")
        yield "strace"
        return
    if os.geteuid() != 0:
        pytest.skip("eBPF needs a tracerd, which needs root")
    from caisson_runner import session
    from caisson_runner.witness import choose
    from witness_daemon import Daemon

    daemon = Daemon(tmp_path)
    try:
        daemon.start(timeout=120)
        monkeypatch.setattr(session, "choose", lambda name: choose(name, daemon.socket))
        yield "ebpf"
    finally:
        daemon.stop()
        daemon.unload()


async def test_the_bundle_holds_what_went_out_and_leads_to_the_process(
    session: MakeSession, witness: str, world: World, task: Task, tmp_path: Path, nonce: str
):
    out = tmp_path / "out"
    async with world.upstream("web.test", hello) as upstream, session(witness, WEB, record=True) as made:
        result = await agent(
            made, task, out, f"curl -sS https://web.test/{nonce}; curl -sS -m 9 http://192.0.2.7:8080/; exit 0"
        )
    assert result.word == "fail", result.detail
    assert nonce.encode() in upstream.seen
    bundle = Bundle.open(out)
    assert (out / "logs/agent.stdout").read_bytes() == b"hello from outside\n"
    events = list(read(out / "gate/events.jsonl"))
    network = json.loads((out / "run.json").read_bytes())["network"]
    assert (network["mode"], network["events"]) == ("gate", len(events))
    assert network["policy_sha256"] == events[0]["policy_sha256"]
    [asked] = [one for one in events if one["kind"] == "http"]
    [answered] = [one for one in events if one["kind"] == "http-done"]
    assert any(
        path.read_bytes() == b"hello from outside\n"
        for path in (out / "gate/bodies").rglob("*")
        if path.is_file() and answered["resp_sha256"] in str(path)
    )
    pids = {one["seq"]: one for one in map(json.loads, (out / "gate/pids.jsonl").read_bytes().splitlines())}
    [shut] = [one for one in events if one["kind"] == "tcp"]
    assert shut["orig_dst"] == ["192.0.2.7", 8080]
    assert pids[asked["seq"]]["by"] == ("socket" if witness == "ebpf" else "destination")
    commands = {record.pid: record.argv for record in bundle.records() if record.argv}
    assert commands[pids[asked["seq"]]["pid"]][-1].decode() == f"https://web.test/{nonce}"
    assert commands[pids[shut["seq"]]["pid"]][-1] == b"http://192.0.2.7:8080/"
    said = show(bundle)
    assert f"  GET https://web.test/{nonce}  200, 19 bytes  by pid {pids[asked['seq']]['pid']} curl -sS" in said
    assert "  refused  tcp 192.0.2.7:8080  port_not_allowed  by pid" in said
    assert b"certs" not in (out / "state/diff.jsonl").read_bytes()
    assert [one["phase"] for one in events if one.get("what") == "phase"] == ["verify"]


async def test_a_recorded_run_is_replayed_without_the_outside(
    session: MakeSession, world: World, task: Task, tmp_path: Path, nonce: str
):
    async def answer(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, f"once: {nonce}\n".encode())

    line = "curl -sS https://web.test/a; curl -sS -o /dev/null -w '%{http_code}\\n' https://web.test/b"
    first, second = tmp_path / "first", tmp_path / "second"
    async with world.upstream("web.test", answer), session(policy=WEB, record=True) as made:
        await agent(made, task, first, "curl -sS https://web.test/a")
    world.pins["web.test"] = ("127.0.0.1", 9)
    async with session(replay=first) as made:
        await agent(made, task, second, line)
    assert (first / "logs/agent.stdout").read_text() == f"once: {nonce}\n"
    said = (second / "logs/agent.stdout").read_text()
    assert said.startswith(f"once: {nonce}\n")
    assert not said.endswith("200\n"), said


async def test_the_task_s_own_list_of_hosts_opens_its_box_and_no_other(
    session: MakeSession, world: World, tmp_path: Path
):
    folder = tmp_path / "listed"
    shutil.copytree(scenarios_root() / "tasks/add-mul", folder)
    text = (folder / "task.toml").read_text()
    hosts = 'network_mode = "allowlist"\nallowed_hosts = ["web.test"]'
    text = text.replace('network_mode = "no-network"', hosts)
    (folder / "task.toml").write_text(text)
    line = "curl -sS https://web.test/; curl -sS -m 9 https://other.test/; exit 0"
    async with world.upstream("web.test", hello), session() as made:
        await agent(made, load_task(folder), tmp_path / "out", line)
        await agent(made, load_task("add-mul"), tmp_path / "closed", line)
    assert (tmp_path / "out/logs/agent.stdout").read_bytes() == b"hello from outside\n"
    assert (tmp_path / "closed/logs/agent.stdout").read_bytes() == b""
    assert not (tmp_path / "closed/gate").exists()


async def test_a_run_whose_gate_is_killed_is_infra_and_keeps_its_record(
    session: MakeSession, world: World, task: Task, tmp_path: Path, nonce: str
):
    out = tmp_path / "out"
    async with world.upstream("web.test", hello) as upstream, session(policy=WEB) as made:
        running = asyncio.create_task(agent(made, task, out, f"curl -sS https://web.test/{nonce}; sleep 600"))
        while nonce.encode() not in upstream.seen:
            await asyncio.sleep(0.02)
            assert not running.done(), running.result()
        process = made.gates._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        result = await asyncio.wait_for(running, 100)
        again = await agent(made, task, tmp_path / "again", "curl -sS https://web.test/")
    assert result.word == "infra"
    assert "SIGKILL" in result.detail
    assert again.word == "fail", "a new gate serves the next run"
    assert (tmp_path / "again/logs/agent.stdout").read_bytes() == b"hello from outside\n"
    assert [one["url"] for one in read(out / "gate/events.jsonl") if one["kind"] == "http"] == [
        f"https://web.test/{nonce}"
    ]
    Bundle.open(out)


async def test_a_broken_policy_ends_the_run_before_anything_is_made(session: MakeSession, task: Task, tmp_path: Path):
    async with session(policy=WEB + "unknown = 1\n") as made:
        with pytest.raises(PolicyError, match="unknown"):
            await agent(made, task, tmp_path / "out", "true")
        (tmp_path / "home/gate").mkdir(exist_ok=True)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


async def test_an_environment_is_built_through_the_gate_where_the_policy_says_so(
    session: MakeSession, world: World, tmp_path: Path, nonce: str
):
    folder = tmp_path / "built"
    shutil.copytree(scenarios_root() / "tasks/add-mul", folder)
    dockerfile = folder / "environment/Dockerfile"
    run = f"RUN curl -sSf -o /app/fetched https://web.test/{nonce}"
    dockerfile.write_text(f"FROM python:3.12-slim\nWORKDIR /app\nCOPY . /app/\n{run}\n")
    policy = WEB.replace("\n[[", '\nphases = ["build"]\n[[', 1)
    line = "cat /app/fetched; curl -sS https://web.test/late"
    out = tmp_path / "out"
    async with world.upstream("web.test", hello) as upstream, session(policy=policy) as made:
        await agent(made, load_task(folder), out, line)
    assert (out / "logs/agent.stdout").read_bytes() == b"hello from outside\n"
    assert b"late" not in upstream.seen
    assert [one["url"] for one in read(out / "gate/build.jsonl") if one["kind"] == "http"] == [
        f"https://web.test/{nonce}"
    ]
    assert {one["phase"] for one in read(out / "gate/build.jsonl") if one.get("what") == "opened"} == {"build"}
    async with world.upstream("web.test", hello), session(policy=WEB) as made:
        result = await agent(made, load_task(folder), tmp_path / "again", line)
    assert result.word == "infra"
