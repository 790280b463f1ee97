"""Ways round a policy that each step alone would let through: the canary outside says whether they are one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from http_rig import LIMIT_S, Box, World, answer_of, box, echo, finish, hello, say

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [443, 80]\n'
OPAQUE = '[[allow]]\nid = "pinned"\nhosts = ["p.test"]\ninspect = false\nmax_response_bytes = 100_000\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def tunnel(here: Box, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", await here.proxy_port())
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)).startswith(b"HTTP/1.1 200")
    return reader, writer


def denied(here: Box) -> set[str]:
    return {one["reason_code"] for one in here.events() if one.get("verdict") == "deny"}


async def test_a_tunnel_to_an_opaque_host_carries_no_other_server_name(world: World, tmp_path: Path) -> None:
    async with world.upstream("p.test", hello) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        _, writer = await tunnel(here, "p.test:443")
        own = ssl.create_default_context(cadata=world.authority.pem.decode())
        own.check_hostname = False
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(writer.start_tls(own, server_hostname="fronted.test"), LIMIT_S)
        await here.event("tls", verdict="deny")
        assert denied(here) == {"sni_mismatch"}
        assert not outside.connections


@pytest.mark.parametrize("inside", [b"SSH-2.0-nonce\r\n", b"GET /nonce HTTP/1.1\r\nHost: other.test\r\n\r\n"])
async def test_a_tunnel_to_an_opaque_host_on_443_carries_tls_only(world: World, tmp_path: Path, inside: bytes) -> None:
    async with world.upstream("p.test", hello, tls=False) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        reader, writer = await tunnel(here, "p.test:443")
        writer.write(inside)
        await finish(reader, writer)
        assert denied(here) == {"protocol"}
        assert not outside.seen


async def test_an_opaque_tunnel_ends_at_the_rules_limit(world: World, tmp_path: Path) -> None:
    async def large(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, b"x" * 1_000_000)

    async with world.upstream("p.test", large), box(world, OPAQUE, tmp_path / "gate") as here:
        _reader, writer = await tunnel(here, "p.test:443")
        own = ssl.create_default_context(cadata=world.authority.pem.decode())
        await writer.start_tls(own, server_hostname="p.test")
        writer.write(b"GET / HTTP/1.1\r\nHost: p.test\r\nConnection: close\r\n\r\n")
        got = await finish(_reader, writer)
        assert len(got) < 500_000
        assert "too_large" in denied(here)


OVERRIDES = [
    b"X-HTTP-Method-Override: DELETE",
    b"X-HTTP-Method: DELETE",
    b"X-Method-Override: DELETE",
    b"X-Original-URL: /nonce",
    b"X-Rewrite-URL: /nonce",
    b"X-Forwarded-Host: nonce.test",
    b"Forwarded: host=nonce.test",
]


async def test_no_header_gives_an_upstream_another_method_path_or_host(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        request = b"GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n" + b"\r\n".join(OVERRIDES) + b"\r\n\r\n"
        status, _, _ = answer_of(await here.ask("a.test", request))
        assert status == 200
        assert b"nonce" not in outside.seen
        assert b"DELETE" not in outside.seen


async def test_a_refusal_in_report_mode_is_told_as_one(world: World, tmp_path: Path) -> None:
    async def private(_name: str, _port: int) -> Sequence[str]:
        return ["10.0.0.1"]

    async with box(world, 'action = "report"\n', tmp_path / "gate", lookup=private) as here:
        status, _, _ = answer_of(await here.get("b.test"))
        assert status == 403
        event = await here.event("http")
        assert (event["verdict"], event["reason_code"]) == ("deny", "address_denied")


async def test_a_websocket_does_not_outlive_its_phase(world: World, tmp_path: Path) -> None:
    from test_gate_websocket import Client, echo_messages
    from wsproto import events as ws

    policy = A + "websocket = true\n"
    async with world.upstream("a.test", echo_messages) as outside, box(world, policy, tmp_path / "gate") as here:
        client = Client(*await here.connect("a.test"))
        assert isinstance(await client.next(), ws.AcceptConnection)
        here.served.phase = "verify"
        client.send(ws.TextMessage(data="nonce"))
        while (event := await client.next()) is not None:
            assert not isinstance(event, ws.TextMessage), "an answer came through a closed phase"
        assert b"nonce" not in outside.seen
        client.writer.close()


async def test_an_opaque_tunnel_does_not_outlive_its_phase(world: World, tmp_path: Path) -> None:
    async with world.upstream("p.test", hello) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        reader, writer = await tunnel(here, "p.test:443")
        own = ssl.create_default_context(cadata=world.authority.pem.decode())
        await writer.start_tls(own, server_hostname="p.test")
        writer.write(b"GET /1 HTTP/1.1\r\nHost: p.test\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"outside\n"), LIMIT_S)
        here.served.phase = "verify"
        writer.write(b"GET /nonce HTTP/1.1\r\nHost: p.test\r\n\r\n")
        await finish(reader, writer)
        assert b"nonce" not in outside.seen


class Front:
    """The front on a local port that behaves as ``name:port`` does in a box."""

    def __init__(self, here: Box, monkeypatch: pytest.MonkeyPatch) -> None:
        from caisson_gate import front

        self.here, self.serve = here, front.Front(here.served, here.proxy, None).serve
        self.dst: tuple[str, int] = ("", 0)
        monkeypatch.setattr(front, "_about", lambda writer: {"src_port": 1, "orig_dst": list(self.dst)})

    async def connect(self, name: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dst = (self.here.served.pool.address(name), port)
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.here._servers.append(server)
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_plain_http_does_not_pass_for_an_opaque_hosts_tls(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.upstream("p.test", hello, tls=False) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        reader, writer = await Front(here, monkeypatch).connect("p.test", 443)
        writer.write(b"GET /nonce HTTP/1.1\r\nHost: other.test\r\n\r\n")
        await finish(reader, writer)
        assert denied(here) == {"protocol"}
        assert not outside.seen


async def test_a_spliced_connection_does_not_outlive_its_phase(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.upstream("p.test", hello) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        reader, writer = await Front(here, monkeypatch).connect("p.test", 443)
        own = ssl.create_default_context(cadata=world.authority.pem.decode())
        await asyncio.wait_for(writer.start_tls(own, server_hostname="p.test"), LIMIT_S)
        writer.write(b"GET /1 HTTP/1.1\r\nHost: p.test\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"outside\n"), LIMIT_S)
        here.served.phase = "verify"
        writer.write(b"GET /nonce HTTP/1.1\r\nHost: p.test\r\n\r\n")
        await finish(reader, writer)
        assert b"nonce" not in outside.seen
        assert (await here.event("tcp", verdict="deny"))["reason_code"] == "after_deadline"


async def test_a_hosted_tool_of_a_models_api_is_told_though_bodies_are_not_kept(world: World, tmp_path: Path) -> None:
    async def answer(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        used = b'data: {"type":"x","content_block":{"type":"server_tool_use","name":"web_search"}}\n\n'
        await say(writer, used, b"content-type: text/event-stream")

    policy = '[[allow]]\nid = "model"\nhosts = ["a.test"]\nmethods = ["POST"]\n'
    body = b'{"tools": [{"type": "web_search_20250305", "name": "web_search"}], "messages": []}'
    async with world.upstream("a.test", answer), box(world, policy, tmp_path / "gate", record=False) as here:
        head = b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\nConnection: close\r\n"
        await here.ask("a.test", head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        done = await here.event("http-done")
        assert [(tool["in"], tool["kind"], tool["where"]) for tool in done["hosted_tools"]] == [
            ("asked", "web", "/tools/0/type"),
            ("answered", "web", "/content_block/name"),
        ]


async def test_a_denied_network_is_not_reached_by_a_name(world: World, tmp_path: Path) -> None:
    async def leads_there(_name: str, _port: int) -> Sequence[str]:
        return ["203.0.113.7", "198.51.100.7"]

    policy = A + '[[deny]]\nid = "net"\naddresses = ["198.51.100.0/24"]\n'
    async with box(world, policy, tmp_path / "gate", lookup=leads_there) as here:
        status, headers, _ = answer_of(await here.get("a.test"))
        assert status == 403
        assert "address_denied" in headers["x-caisson-decision"]
