"""HTTP/2: each stream is judged by its own names, and nothing of a refused one gets out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from h2_rig import H2Client, h2_upstream
from http_rig import LIMIT_S, World, box, echo, forget_peak, hello, peak

A = '[[allow]]\nid = "a"\nhosts = ["a.test", "c.test"]\nports = [443]\nmethods = ["GET", "POST"]\n'
GET = [(":method", "GET"), (":scheme", "https"), (":path", "/nonce")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def test_streams_go_through_to_either_kind_of_upstream(world: World, tmp_path: Path) -> None:
    async with h2_upstream(world, "a.test") as outside, world.upstream("c.test", hello) as old:
        async with box(world, A, tmp_path / "gate") as here:
            client = await H2Client.open(here, "a.test")
            streams = [client.get("a.test", f"/{number}") for number in range(5)]
            answers = [await client.wait(stream) for stream in streams]
            assert {(one.status, one.body) for one in answers} == {(200, b"over h2\n")}
            assert all("alt-svc" not in one.headers for one in answers)
            assert outside.connections == 1 and len(outside.heads) == 5
            client.close()
            client = await H2Client.open(here, "c.test")
            streams = [client.get("c.test", f"/{number}") for number in range(5)]
            assert [(await client.wait(stream)).body for stream in streams] == [b"hello from outside\n"] * 5
            assert len(old.heads) == 5 and all(b"Host: c.test\r\n" in head for head in old.heads)
            client.close()
            assert {one["tls"]["alpn"] for one in here.events("http")} == {"h2"}
            assert {one["status"] for one in here.events("http-done")} == {200}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([*GET, (":authority", "c.test")], "host_mismatch"),
        ([(":method", "GET"), (":scheme", "https"), (":path", "/a%2fnonce"), (":authority", "a.test")], "malformed"),
        ([*GET[1:], (":method", "DELETE"), (":authority", "a.test")], "method_not_allowed"),
        ([*GET, (":authority", "a.test:8443")], "host_mismatch"),
    ],
)
async def test_a_stream_is_refused_by_its_own_head_and_its_neighbours_go_on(
    world: World, tmp_path: Path, fields: list[tuple[str, str]], reason: str
) -> None:
    async with h2_upstream(world, "a.test") as outside, h2_upstream(world, "c.test") as other:
        async with box(world, A, tmp_path / "gate") as here:
            client = await H2Client.open(here, "a.test")
            refused = await client.wait(client.send(fields))
            assert 400 <= refused.status < 500, refused
            assert f"reason={reason}" in refused.headers["x-caisson-decision"]
            assert (await client.wait(client.get("a.test", "/after"))).status == 200
            client.close()
            assert b"nonce" not in outside.seen and not other.seen
            assert [one["reason_code"] for one in here.events("http") if one["verdict"] == "deny"] == [reason]


@pytest.mark.parametrize(
    "fields",
    [
        GET,
        [*GET, (":authority", "a.test"), ("host", "c.test")],
        [*GET, (":authority", "n@a.test")],
        [*GET, (":authority", "a.test"), ("x", "a\r\nb: c")],
        [(":method", "CONNECT"), (":authority", "a.test:443")],
        [*GET, (":authority", "a.test"), ("Upper", "a")],
        [*GET, (":authority", "a.test"), ("connection", "x")],
        [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/nonce"),
            (":authority", "a.test"),
        ],
    ],
)
async def test_a_head_that_breaks_the_protocol_reaches_nobody(
    world: World, tmp_path: Path, fields: list[tuple[str, str]]
) -> None:
    async with h2_upstream(world, "a.test") as outside, box(world, A, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        one = await client.wait(client.send(fields))
        assert one.status != 200
        client.close()
        assert not outside.seen
        assert (await here.event("http", verdict="deny"))["reason_code"] in ("malformed", "protocol")


async def test_a_refused_upload_is_answered_and_then_reset_without_an_error(world: World, tmp_path: Path) -> None:
    async with h2_upstream(world, "a.test") as outside, box(world, A, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        fields = [(":method", "PUT"), (":scheme", "https"), (":path", "/"), (":authority", "a.test")]
        stream = client.send(fields, more=True)
        one = client.streams[stream]
        while one.reset is None and await client.step():
            pass
        assert (one.status, one.reset) == (403, 0)
        assert (await client.wait(client.get("a.test", "/after"))).status == 200
        client.close()
        assert b"PUT" not in outside.seen


async def test_an_upload_over_the_limit_is_cut_on_its_stream_only(world: World, tmp_path: Path) -> None:
    policy = A + "max_request_bytes = 20_000\n"
    async with world.upstream("a.test", echo), box(world, policy, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        fields = [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "a.test")]
        stream = client.send(fields, b"x" * 16_000, more=True)
        for _ in range(3):
            client.conn.send_data(stream, b"x" * 10_000)
        client.flush()
        one = await client.wait(stream)
        assert one.status == 413
        assert (await client.wait(client.get("a.test"))).status == 200
        client.close()
        assert (await here.event("http-done", verdict="deny"))["reason_code"] == "too_large"


async def test_a_slow_reader_does_not_fill_the_gates_memory(world: World, tmp_path: Path) -> None:
    """The box takes nothing more after the first window; the gate stops reading the upstream instead of collecting."""
    piece, pieces = b"y" * (1 << 20), 96
    async with h2_upstream(world, "a.test", piece, pieces) as _, box(world, A, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        client.taking = False
        stream = client.get("a.test")
        before = forget_peak()
        while len(client.streams[stream].body) < 60_000:
            await client.step()
        for _ in range(100):
            await asyncio.sleep(0.01)  # time in which a collecting gate would collect
        assert peak() - before < 48 << 10
        client.taking = True
        client.conn.increment_flow_control_window(1 << 30)
        client.conn.increment_flow_control_window(1 << 30, stream)
        client.flush()
        got = 0
        one = client.streams[stream]
        while not one.ended:
            got += len(one.body)
            one.body = b""
            assert await asyncio.wait_for(client.step(), LIMIT_S)
        assert got + len(one.body) == len(piece) * pieces
        client.close()
