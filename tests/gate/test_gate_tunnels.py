"""The explicit proxy port: CONNECT and absolute requests are judged as captured ones are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_rig import LIMIT_S, Box, World, answer_of, box, echo, finish, hello

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [443, 80]\nmethods = ["GET", "POST"]\n'
OPAQUE = '[[allow]]\nid = "pinned"\nhosts = ["p.test"]\ninspect = false\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def tunnel(here: Box, target: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """CONNECT; the proxy's head, and the connection behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await here.proxy_port())
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    return head, reader, writer


async def test_a_tunnel_to_an_allowed_host_is_opened_and_read(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello), box(world, A, tmp_path / "gate") as here:
        head, reader, writer = await tunnel(here, "A.test.:443")
        assert head.startswith(b"HTTP/1.1 200")
        await writer.start_tls(here.trust, server_hostname="a.test")
        writer.write(b"GET /in HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        assert b"hello from outside" in await finish(reader, writer)
        connect, asked = here.events("connect")[0], here.events("http")[0]
        assert (connect["verdict"], connect["rule"], connect["name_connect"]) == ("allow", "a", "A.test.:443")
        assert (asked["verdict"], asked["rule"], asked["url"]) == ("allow", "a", "https://a.test/in")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("a.test:22", "port_not_allowed"),
        ("b.test:443", "not_allowed"),
        ("127.0.0.1:443", "address_denied"),
        ("0x7f.1:443", "address_denied"),
        ("[::ffff:127.0.0.1]:443", "address_denied"),
        ("198.51.100.7:443", "ip_literal"),
        ("[fe80::1%25a.test]:443", "malformed"),
        ("a.test", "malformed"),
        ("nonce@a.test:443", "malformed"),
        ("a.test:99999", "malformed"),
    ],
)
async def test_a_tunnel_elsewhere_is_refused_at_connect(world: World, tmp_path: Path, target: str, reason: str) -> None:
    async with world.upstream("a.test", hello) as outside, box(world, A, tmp_path / "gate") as here:
        head, reader, writer = await tunnel(here, target)
        await finish(reader, writer)
        assert head.startswith(b"HTTP/1.1 4") and f"reason={reason}".encode() in head
        (event,) = here.events("connect", "http")
        assert (event["verdict"], event["reason_code"]) == ("deny", reason)
        assert not outside.connections


async def test_another_server_name_inside_a_tunnel_ends_it(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello) as outside, world.upstream("b.test", hello) as other:
        async with box(world, A + A.replace("a.test", "b.test").replace('"a"', '"b"'), tmp_path / "gate") as here:
            _, _, writer = await tunnel(here, "a.test:443")
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await writer.start_tls(here.trust, server_hostname="b.test")
            assert (await here.event("tls", verdict="deny"))["reason_code"] == "sni_mismatch"
            assert not outside.connections and not other.connections


async def test_another_host_inside_a_tunnel_is_refused(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo) as outside, world.upstream("b.test", echo) as other:
        async with box(world, A + A.replace("a.test", "b.test").replace('"a"', '"b"'), tmp_path / "gate") as here:
            _, reader, writer = await tunnel(here, "a.test:443")
            await writer.start_tls(here.trust, server_hostname="a.test")
            writer.write(b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
            status, headers, _ = answer_of(await finish(reader, writer))
            assert status == 421 and "host_mismatch" in headers["x-caisson-decision"]
            assert not outside.seen and not other.seen


async def test_a_tunnel_inside_a_tunnel_is_refused(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        _, reader, writer = await tunnel(here, "a.test:443")
        await writer.start_tls(here.trust, server_hostname="a.test")
        writer.write(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n")
        assert b"reason=protocol" in await finish(reader, writer)
        assert not outside.seen


@pytest.mark.parametrize("inside", [b"SSH-2.0-nonce\r\n", b"\x00\x01nonce", b"\x16\x03nonce-that-is-no-hello" * 9])
async def test_what_is_neither_tls_nor_http_ends_a_tunnel(world: World, tmp_path: Path, inside: bytes) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        _, reader, writer = await tunnel(here, "a.test:443")
        writer.write(inside)
        await finish(reader, writer)
        denied = [one["reason_code"] for one in here.events() if one["verdict"] == "deny"]
        assert denied and set(denied) <= {"protocol", "malformed"}
        assert not outside.seen


async def test_absolute_requests_are_judged_by_their_own_host(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo, tls=False) as outside, box(world, A, tmp_path / "gate") as here:
        port = await here.proxy_port()

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            return await finish(reader, writer)

        good = await ask(b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        assert answer_of(good)[0] == 200 and outside.heads[0].startswith(b"GET /x HTTP/1.1\r\nHost: a.test\r\n")
        for refused in (
            b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
            b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"GET http://x@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ):
            status, headers, _ = answer_of(await ask(refused))
            assert 400 <= status < 500 and headers["x-caisson-decision"].startswith("deny"), refused
        assert len(outside.heads) == 1


async def test_an_absolute_request_on_a_captured_connection_must_agree_with_itself(
    world: World, tmp_path: Path
) -> None:
    async with world.upstream("a.test", echo, tls=False) as outside, box(world, A, tmp_path / "gate") as here:
        good = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
        assert answer_of(await here.ask("a.test", good, 80, tls=False))[0] == 200
        for one, two in ((b"a.test", b"b.test"), (b"b.test", b"a.test")):
            request = b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (one, two)
            assert 400 <= answer_of(await here.ask("a.test", request, 80, tls=False))[0] < 500
        assert len(outside.heads) == 1


async def test_an_opaque_host_goes_through_unread_and_is_marked(world: World, tmp_path: Path) -> None:
    import ssl

    async with world.upstream("p.test", hello) as outside, box(world, OPAQUE, tmp_path / "gate") as here:
        head, reader, writer = await tunnel(here, "p.test:443")
        assert head.startswith(b"HTTP/1.1 200")
        own = ssl.create_default_context(cadata=world.authority.pem.decode())
        await writer.start_tls(own, server_hostname="p.test")  # the upstream's own certificate, not the gate's
        writer.write(b"GET / HTTP/1.1\r\nHost: p.test\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"outside\n"), LIMIT_S)
        writer.close()
        event = await here.event("tcp")
        assert event["opaque"] and event["req_len"] > 100 and event["resp_len"] > 100
        assert here.events("connect")[0]["opaque"] and not here.events("http")
        assert len(outside.heads) == 1
