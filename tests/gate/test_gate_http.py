"""HTTP and HTTPS through the proxy: what passes, what is refused, and that the canary outside agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from http_rig import World, answer_of, box, echo, hello

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [443, 80]\nmethods = ["GET", "POST"]\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def test_an_allowed_request_goes_through_and_is_recorded(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello) as outside, box(world, A, tmp_path / "gate") as here:
        status, _, body = answer_of(await here.get("a.test", "/x?y=1"))
        assert (status, body) == (200, b"hello from outside\n")
        assert outside.heads[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")
        decided = await here.event("http")
        done = await here.event("http-done")
        assert (decided["verdict"], decided["rule"], decided["url"]) == ("allow", "a", "https://a.test/x?y=1")
        assert decided["target"] == {"scheme": "https", "host": "a.test", "port": 443, "path": "/x?y=1"}
        assert (done["of"], done["status"], done["resp_len"]) == (decided["seq"], 200, len(body))
        assert (tmp_path / "gate/bodies" / done["resp_sha256"]).read_bytes() == body


async def test_a_refused_request_never_reaches_the_outside(world: World, tmp_path: Path) -> None:
    async with (
        world.upstream("a.test", hello) as outside,
        world.upstream("b.test", hello) as other,
        box(world, A, tmp_path / "gate") as here,
    ):
        status, headers, body = answer_of(await here.ask("b.test", b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"))
        assert status == 403
        assert headers["x-caisson-decision"] == "deny; rule=default; reason=not_allowed"
        assert json.loads(body)["reason"] == "not_allowed"
        assert (await here.event("http", verdict="deny"))["reason_code"] == "not_allowed"
        assert not outside.seen and not other.seen and not other.connections


async def test_plain_http_goes_through_too(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo, tls=False), box(world, A, tmp_path / "gate") as here:
        status, _, body = answer_of(await here.get("a.test", port=80, tls=False))
        assert status == 200 and b"Host: a.test\r\n" in body
