"""Websockets: only where a rule says so, every message recorded, limits kept."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
import wsproto
from http_rig import LIMIT_S, World, box
from wsproto import events as ws
from wsproto.connection import ConnectionType

PLAIN = '[[allow]]\nid = "a"\nhosts = ["a.test"]\n'
OPEN = PLAIN + "websocket = true\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def echo_messages(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
    """An upstream that takes the upgrade and repeats every message; the reader is the transport's own."""
    server = wsproto.WSConnection(ConnectionType.SERVER)
    server.receive_data(head)
    for event in server.events():
        if isinstance(event, ws.Request):
            writer.write(server.send(ws.AcceptConnection()))
    reader: asyncio.StreamReader = writer._reader  # type: ignore[attr-defined]
    while data := await reader.read(1 << 16):
        server.receive_data(data)
        for event in server.events():
            if isinstance(event, ws.TextMessage | ws.BytesMessage):
                made = type(event)(data=event.data, message_finished=event.message_finished)  # type: ignore[arg-type]
                writer.write(server.send(made))
            elif isinstance(event, ws.CloseConnection):
                writer.write(server.send(event.response()))
        await writer.drain()
    writer.close()


class Client:
    """A websocket client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.conn = wsproto.WSConnection(ConnectionType.CLIENT)
        writer.write(self.conn.send(ws.Request(host="a.test", target="/ws")))

    def send(self, event: ws.Event) -> None:
        self.writer.write(self.conn.send(event))

    async def next(self) -> ws.Event | None:
        """None at the end."""
        while True:
            for event in self.conn.events():
                return event
            data = await asyncio.wait_for(self.reader.read(1 << 16), LIMIT_S)
            if not data:
                return None
            self.conn.receive_data(data)


async def test_messages_go_both_ways_and_each_is_an_event(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo_messages), box(world, OPEN, tmp_path / "gate") as here:
        client = Client(*await here.connect("a.test"))
        assert isinstance(await client.next(), ws.AcceptConnection)
        for number in range(3):
            client.send(ws.TextMessage(data=f"message {number}"))
            answer = await client.next()
            assert isinstance(answer, ws.TextMessage) and answer.data == f"message {number}"
        client.send(ws.BytesMessage(data=b"\x00\xff"))
        assert isinstance(await client.next(), ws.BytesMessage)
        client.send(ws.CloseConnection(code=1000))
        await client.next()
        done = await here.event("ws-done")
        asked = here.events("http")[0]
        messages = here.events("ws")
        assert asked["websocket"] and {one["of"] for one in (*messages, done)} == {asked["seq"]}
        assert [one["from_box"] for one in messages] == [True, False] * 4
        assert messages[0]["body_sha256"] == hashlib.sha256(b"message 0").hexdigest()
        assert (tmp_path / "gate/bodies" / messages[6]["body_sha256"]).read_bytes() == b"\x00\xff"
        assert (messages[6]["opcode"], done["close_code"]) == ("binary", 1000)
        client.writer.close()


async def test_without_the_rules_word_there_is_no_websocket(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo_messages) as outside, box(world, PLAIN, tmp_path / "gate") as here:
        client = Client(*await here.connect("a.test"))
        answer = await client.next()
        assert isinstance(answer, ws.RejectConnection) and answer.status_code == 403
        assert not outside.seen
        assert (await here.event("http", verdict="deny"))["reason_code"] == "protocol"
        client.writer.close()


@pytest.mark.parametrize("pieces", [1, 40])
async def test_frames_beyond_the_limit_end_the_websocket(world: World, tmp_path: Path, pieces: int) -> None:
    """In one message or as one that never ends."""
    policy = OPEN + "max_request_bytes = 100_000\n"
    async with world.upstream("a.test", echo_messages), box(world, policy, tmp_path / "gate") as here:
        client = Client(*await here.connect("a.test"))
        assert isinstance(await client.next(), ws.AcceptConnection)
        for _ in range(pieces):
            client.send(ws.BytesMessage(data=b"n" * (400_000 // pieces), message_finished=pieces == 1))
        done = await here.event("ws-done")
        assert (done["verdict"], done["reason_code"]) == ("deny", "too_large")
        client.writer.transport.abort()


async def test_an_upstream_that_changes_protocol_unasked_is_refused(world: World, tmp_path: Path) -> None:
    async def upgrade(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: nonce\r\n\r\nraw tunnel")

    async with world.upstream("a.test", upgrade), box(world, OPEN, tmp_path / "gate") as here:
        answer = await here.get("a.test")
        assert answer.startswith(b"HTTP/1.1 502") and b"reason=protocol" in answer and b"raw tunnel" not in answer


async def test_a_websocket_answer_to_a_plain_request_is_refused(world: World, tmp_path: Path) -> None:
    async def upgrade(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nraw tunnel")

    async with world.upstream("a.test", upgrade), box(world, PLAIN, tmp_path / "gate") as here:
        answer = await here.get("a.test", headers="Sec-WebSocket-Version: 13\r\n")
        assert answer.startswith(b"HTTP/1.1 502") and b"raw tunnel" not in answer
