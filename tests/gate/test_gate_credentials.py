"""Credentials stay outside: neither the box nor anything that is written ever holds one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from caisson_gate.credentials import Credentials, CredentialUnusable, Redactor, placeholder
from http_rig import World, answer_of, box, echo, say
from hypothesis import given
from hypothesis import strategies as st

TOKEN = 'sk-canary/7f+3a=\u00e9"x'  # made up, with what URLs, JSON and UTF-8 escape
POLICY = (
    '[[allow]]\nid = "model"\nhosts = ["api.test"]\nmethods = ["GET", "POST"]\ninject = "env:API_KEY"\n'
    '[[allow]]\nid = "other"\nhosts = ["other.test"]\nmethods = ["GET", "POST"]\n'
)
TEXT = TOKEN.encode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


def written(folder: Path) -> bytes:
    """Every byte the gate left behind."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def spellings(token: bytes) -> dict[str, bytes]:
    """How an upstream may repeat a token."""
    return {
        "plain": token,
        "url": quote(token, safe="").encode(),
        "json": json.dumps(token.decode()).encode(),
        "hex": token.hex().encode(),
        "basic": base64.b64encode(b"user:" + token),
        "base64-1": base64.b64encode(b"x" + token + b"y"),
        "base64-2": base64.b64encode(b"xy" + token + b"z"),
        "base64-url": base64.urlsafe_b64encode(token),
    }


def holds(data: bytes, token: bytes) -> list[str]:
    """The spellings found, by the part of each that no neighbour changes."""
    found = {"plain": token, "url": quote(token, safe="").encode(), "hex": token.hex().encode()}
    found["json"] = json.dumps(token.decode())[1:-1].encode()
    for offset in range(3):
        whole = base64.b64encode(bytes(offset) + token)
        found[f"base64-{offset}"] = whole[(offset * 8 + 5) // 6 : (offset + len(token)) * 8 // 6]
    return [name for name, part in found.items() if part in data]


async def test_the_upstream_gets_the_credential_and_nobody_else(world: World, tmp_path: Path) -> None:
    async with world.upstream("api.test", echo) as api, world.upstream("other.test", echo) as other:
        async with box(world, POLICY, tmp_path / "gate", environ={"API_KEY": TOKEN}) as here:
            mark = placeholder("API_KEY")
            one = await here.get("api.test", headers=f"Authorization: Bearer {mark}\r\nAccept-Encoding: gzip, br\r\n")
            two = await here.get("other.test", headers=f"Authorization: Bearer {mark}\r\n")
            await here.close()
        assert b"authorization: Bearer " + TEXT in api.heads[0] and mark.encode() not in api.heads[0]
        assert b"accept-encoding: identity" in api.heads[0]
        assert TEXT not in other.seen and mark.encode() in other.seen
        assert not holds(one + two, TEXT)
        assert b"[masked API_KEY]" in one
        assert not holds(written(tmp_path / "gate"), TEXT)
        event = next(e for e in here.events("http") if e["rule"] == "model")
        assert ["Authorization", f"Bearer {mark}"] in event["req"]["headers"]  # as the box sent it
        assert next(e for e in here.events("http-done") if e["rule"] == "model")["injected"] == "API_KEY"


async def test_a_credential_that_comes_back_in_any_spelling_is_masked(world: World, tmp_path: Path) -> None:
    async def repeat(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = b"\n".join(spellings(TEXT).values())
        writer.write(b"HTTP/1.1 200 OK\r\nx-echo: %s\r\ntransfer-encoding: chunked\r\n\r\n" % quote(TOKEN).encode())
        for at in range(0, len(lines), 3):  # torn into small chunks: a mask must not depend on where they end
            piece = lines[at : at + 3]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async with world.upstream("api.test", repeat):
        async with box(world, POLICY, tmp_path / "gate", environ={"API_KEY": TOKEN}) as here:
            answer = await here.get("api.test")
            done = await here.event("http-done")
        status, _, body = answer_of(answer)
        joined = b"".join(line for line in body.split(b"\r\n")[1::2])
        assert status == 200 and not holds(joined, TEXT)
        assert joined.count(b"[masked API_KEY]") >= 7
        assert done["resp_masked"] and not holds(written(tmp_path / "gate"), TEXT)


async def test_a_compressed_answer_is_read_before_the_box_gets_it(world: World, tmp_path: Path) -> None:
    async def packed(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, gzip.compress(b"begin " + TEXT + b" end"), b"Content-Encoding: gzip")

    async with world.upstream("api.test", packed):
        async with box(world, POLICY, tmp_path / "gate", environ={"API_KEY": TOKEN}) as here:
            answer = await here.get("api.test")
        assert b"begin [masked API_KEY]" in answer and b" end" in answer and b"content-encoding" not in answer.lower()
        assert not holds(written(tmp_path / "gate"), TEXT)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 %s\r\ncontent-length: 0\r\n\r\n",
        b"nonsense %s\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header %s\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n%s: x\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%s\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: https://other.test/?key=%s\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_a_credential_does_not_come_back_in_what_is_no_answer(
    world: World, tmp_path: Path, answer: bytes
) -> None:
    token = b"sk-canary-plain-0123456789"

    async def broken(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer % token)
        writer.close()

    async with world.upstream("api.test", broken):
        async with box(world, POLICY, tmp_path / "gate", environ={"API_KEY": token.decode()}) as here:
            answered = await here.get("api.test")
            await here.event("http-done")
    assert token not in answered and token not in written(tmp_path / "gate")


async def test_an_answer_that_cannot_be_read_is_not_passed_on(world: World, tmp_path: Path) -> None:
    async def unread(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, b"who knows " + TEXT, b"Content-Encoding: zstd")

    async with world.upstream("api.test", unread):
        async with box(world, POLICY, tmp_path / "gate", environ={"API_KEY": TOKEN}) as here:
            assert answer_of(await here.get("api.test"))[0] == 502


async def test_a_packed_answer_that_unfolds_without_end_is_cut(world: World, tmp_path: Path) -> None:
    async def bomb(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, gzip.compress(bytes(64 << 20)), b"Content-Encoding: gzip")

    policy = POLICY.replace("inject", "max_response_bytes = 1_000_000\ninject", 1)
    async with world.upstream("api.test", bomb):
        async with box(world, policy, tmp_path / "gate", environ={"API_KEY": TOKEN}) as here:
            assert len(await here.get("api.test")) < 2_000_000
            assert (await here.event("http-done"))["reason_code"] == "too_large"


async def test_a_key_the_box_brought_itself_is_not_written_down(world: World, tmp_path: Path) -> None:
    async with world.upstream("other.test", echo) as other:
        async with box(world, POLICY, tmp_path / "gate", record=False, environ={"API_KEY": TOKEN}) as here:
            await here.get("other.test", headers="X-Api-Key: brought-along-1234\r\n")
        assert b"brought-along-1234" in other.seen
        assert b"brought-along-1234" not in written(tmp_path / "gate")


async def test_a_policy_whose_credential_is_missing_opens_no_box(world: World, tmp_path: Path) -> None:
    with pytest.raises(CredentialUnusable, match="API_KEY"):
        async with box(world, POLICY, tmp_path / "gate", environ={}):
            pass


@pytest.mark.parametrize("value", ["short", "line\nend-of-it", "nul\0-and-more"])
def test_a_value_that_could_not_be_masked_or_sent_is_refused(value: str) -> None:
    with pytest.raises(CredentialUnusable):
        Credentials({"KEY": value})


@given(st.binary(max_size=60), st.binary(max_size=60), st.data())
def test_masking_does_not_depend_on_how_a_stream_is_torn(before: bytes, after: bytes, data: st.DataObject) -> None:
    redactor = Redactor({"KEY": b"abcabcabdabc"})
    whole = before + b"abcabcabdabc" + after
    stream, at, out = redactor.stream(), 0, b""
    while at < len(whole):
        size = data.draw(st.integers(1, 9))
        out += stream.feed(whole[at : at + size])
        at += size
    out += stream.finish()
    assert out == redactor.whole(whole) and len(out) == len(whole)
    assert stream.changed and b"abcabcabdabc" not in out


def test_what_is_no_secret_is_not_held_back() -> None:
    stream = Redactor({"KEY": b"topsecret-123"}).stream()
    assert stream.feed(b"data: an event\n\n") == b"data: an event\n\n"
    assert stream.feed(b"data: top") == b"data: "
    assert stream.feed(b"ology\n\n") == b"topology\n\n"


@pytest.mark.parametrize(
    "shown",
    [
        b"k&y<of>the\\/gate'1\"",
        b"k\\u0026y\\u003cof\\u003ethe/gate'1\\\"",
        b"k&amp;y&lt;of&gt;the/gate&#x27;1&quot;",
        b"k&amp;y&lt;of&gt;the/gate&#39;1&#34;",
        b"k&amp;y&lt;of&gt;the/gate'1\"",
    ],
)
def test_a_value_is_masked_as_other_languages_write_it(shown: bytes) -> None:
    redactor = Credentials({"KEY": "k&y<of>the/gate'1\""}).redactor
    if b"\\/" in shown:
        shown = shown.replace(b'"', b'\\"')
    assert redactor.whole(b"<" + shown + b">").startswith(b"<[masked KEY]")
