"""One gate serves many boxes: what one of them sends must not take the gate's memory or descriptors from the others."""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from pathlib import Path

import pytest
from caisson_gate.resolve import Judge, Target
from caisson_gate.share import SLICE_S, Share
from h2_rig import H2Client
from http_rig import LIMIT_S, World, answer_of, box, forget_peak, hello, peak

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [80, 443]\nmethods = ["GET", "POST"]\n'
POURED = 96 << 20
GROWN_KIB = 48 << 10
"""Half of what is poured: far more than what is held, far less than all of it."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


def descriptors() -> int:
    """Open in this process, where both ends of everything are."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def silent(_head: bytes, _body: bytes, _writer: asyncio.StreamWriter) -> None:
    """An upstream that takes a request and thinks about it for ever."""
    await asyncio.Event().wait()


async def pour(writer: asyncio.StreamWriter, amount: int = POURED, patience: float = 1.0) -> int:
    """Send until nothing more is taken for so long; how much went."""
    sent = 0
    while sent < amount:
        writer.write(bytes(1 << 16))
        try:
            await asyncio.wait_for(writer.drain(), patience)
        except TimeoutError:
            break
        sent += 1 << 16
    return sent


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_what_is_pipelined_behind_a_slow_request_stays_with_the_box(
    world: World, tmp_path: Path, tls: bool
) -> None:
    async with world.upstream("a.test", silent, tls=tls) as upstream, box(world, A, tmp_path / "gate") as here:
        _, writer = await here.connect("a.test", 443 if tls else 80, tls=tls)
        writer.write(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
        await here.event("http")
        before = forget_peak()
        assert await pour(writer) < POURED
        assert peak() - before < GROWN_KIB
        assert upstream.seen.count(b"\0") == 0
        writer.transport.abort()


async def test_an_upload_waits_in_the_box_while_its_target_is_looked_up(world: World, tmp_path: Path) -> None:
    looked = asyncio.Event()

    async def lookup(_name: str, _port: int) -> list[str]:
        looked.set()
        await asyncio.Event().wait()
        return []

    async with box(world, A, tmp_path / "gate", lookup=lookup) as here:
        _, writer = await here.connect("a.test", 80, tls=False)
        writer.write(b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n40000000\r\n")
        await asyncio.wait_for(looked.wait(), LIMIT_S)
        before = forget_peak()
        assert await pour(writer) < POURED
        assert peak() - before < GROWN_KIB
        writer.transport.abort()


async def test_an_upload_goes_through_whole_after_it_waited(world: World, tmp_path: Path) -> None:
    go = asyncio.Event()
    size = 3 << 20

    policy = A + f"max_request_bytes = {size}\n"
    async with world.upstream("a.test", hello, tls=False), box(world, policy, tmp_path / "gate") as here:
        real = here.served.resolver.resolve

        async def slow(name: str, port: int, judge: Judge) -> Target:
            await go.wait()
            return await real(name, port, judge)

        here.served.resolver.resolve = slow  # type: ignore[method-assign]
        reader, writer = await here.connect("a.test", 80, tls=False)
        writer.write(f"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {size}\r\n\r\n".encode())
        sending = asyncio.ensure_future(pour(writer, size, LIMIT_S))
        await asyncio.sleep(0.2)
        go.set()
        assert await asyncio.wait_for(sending, LIMIT_S) == size
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert (await here.event("http-done"))["req_len"] == size
        writer.close()


async def test_a_stream_that_waits_for_a_connection_does_not_collect_its_upload(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", silent) as upstream, box(world, A, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        for _ in range(8):
            client.get("a.test")
        pseudo = [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "a.test")]
        stream = client.send(pseudo, b"x", more=True)
        while len(here.events("http")) < 9 or upstream.connections < 8:
            await asyncio.sleep(0.02)
        before, sent = forget_peak(), 0
        while sent < POURED:
            client.conn.outbound_flow_control_window = client.conn.streams[stream].outbound_flow_control_window = (
                1 << 30
            )
            for _ in range(4):
                client.conn.send_data(stream, bytes(1 << 14))
            client.flush()
            try:
                await asyncio.wait_for(client.writer.drain(), 1)
            except TimeoutError:
                break
            sent += 1 << 16
        assert sent < POURED
        assert peak() - before < GROWN_KIB
        client.writer.transport.abort()


async def test_a_connection_that_goes_from_host_to_host_holds_one_descriptor_upstream(
    world: World, tmp_path: Path
) -> None:
    many = 40
    async with world.upstream("a.test", hello, tls=False) as upstream:
        for number in range(many):
            world.pins[f"n{number}.cdn.test"] = ("127.0.0.1", upstream.port)
        async with box(world, '[[allow]]\nhosts = ["*.cdn.test"]\nports = [80]\n', tmp_path / "gate") as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", await here.proxy_port())
            before = descriptors()
            for number in range(many):
                name = f"n{number}.cdn.test"
                writer.write(f"GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
                assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
                await reader.readexactly(len(b"hello from outside\n"))
            assert upstream.connections == many
            async with asyncio.timeout(LIMIT_S):
                while descriptors() - before > 4:
                    await asyncio.sleep(0.02)
            writer.close()


async def test_a_box_has_only_so_many_requests_under_way(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caisson_gate.proxy_http.AT_ONCE", 3)
    async with world.upstream("a.test", silent, tls=False), box(world, A, tmp_path / "gate") as here:
        open_ones = []
        for number in range(3):
            _, writer = await here.connect("a.test", 80, tls=False)
            writer.write(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            open_ones.append(writer)
            while len(here.events("http")) <= number:
                await asyncio.sleep(0.02)
        status, headers, _ = answer_of(await here.get("a.test", port=80, tls=False))
        assert (status, headers["x-caisson-decision"]) == (503, "deny; rule=a; reason=gate_busy")
        await here.event("http-done", reason_code="gate_busy")
        open_ones.pop().transport.abort()
        await here.event("http-done", of=here.events("http")[2]["seq"])
        _, writer = await here.connect("a.test", 80, tls=False)
        writer.write(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            while len(here.events("http")) < 5:
                await asyncio.sleep(0.02)
        assert len(here.events("http-done")) == 2  # it is under way
        for one in (*open_ones, writer):
            one.transport.abort()


async def test_a_small_websocket_message_cannot_unfold_in_the_gate(world: World, tmp_path: Path) -> None:
    """Compression is not agreed on, whatever either side says, so what is recorded is what was sent."""
    got = bytearray()

    async def accept(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        got.extend(head)
        writer.write(
            b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
            b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        )
        await writer._reader.read()  # type: ignore[attr-defined]

    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = (bomb.compress(bytes(POURED)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]
    async with (
        world.upstream("a.test", accept, tls=False),
        box(world, A + "websocket = true\n", tmp_path / "gate") as here,
    ):
        reader, writer = await here.connect("a.test", 80, tls=False)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        )
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert b"deflate" not in answer.lower() and b"deflate" not in got
        before = forget_peak()
        writer.write(b"\xc2\xff" + struct.pack("!Q", len(data)) + bytes(4) + data)
        await here.event("ws-done")
        assert peak() - before < GROWN_KIB
        assert not here.events("ws")
        writer.close()


async def test_a_websocket_message_without_an_end_is_cut_off(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caisson_gate.proxy_http.MAX_MESSAGE", 1 << 20)

    async def endless(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x02\x7e\xff\xff" + bytes(65535)
        )
        while not writer.is_closing():
            writer.write(b"\x00\x7e\xff\xff" + bytes(65535))
            await writer.drain()

    async with (
        world.upstream("a.test", endless, tls=False),
        box(world, A + "websocket = true\n", tmp_path / "gate") as here,
    ):
        reader, writer = await here.connect("a.test", 80, tls=False)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        done = await here.event("ws-done")
        assert (done["verdict"], done["reason_code"]) == ("deny", "too_large")
        assert done["resp_len"] < 4 << 20
        writer.close()


@pytest.mark.parametrize("path", ["/", "/a/../..%2f"], ids=["allowed", "refused"])
async def test_a_flood_of_streams_that_are_taken_back_ends_its_connection(
    world: World, tmp_path: Path, path: str
) -> None:
    async with world.upstream("a.test", hello) as upstream, box(world, A, tmp_path / "gate") as here:
        client = await H2Client.open(here, "a.test")
        pseudo = [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "a.test")]
        block = client.conn.encoder.encode(pseudo)
        block_again = client.conn.encoder.encode(pseudo)
        data = b""
        for number in range(1, 2001, 2):
            stream, head = struct.pack("!I", number), block if number == 1 else block_again
            data += struct.pack("!I", len(head))[1:] + b"\x01\x05" + stream + head
            data += struct.pack("!I", 4)[1:] + b"\x03\x00" + stream + struct.pack("!I", 8)
        client.writer.write(data)
        await here.event("http", detail="streams are begun to be reset")
        assert len(here.events("http")) <= 102
        assert upstream.connections <= 8
        client.writer.transport.abort()


async def test_a_box_that_had_its_time_waits_and_another_goes_on() -> None:
    """Whatever one box's connections have to do, the other's comes next."""
    busy, other = Share(), Share()
    order: list[str] = []

    async def work(share: Share, name: str, pieces: int) -> None:
        for _ in range(pieces):
            await asyncio.sleep(0)  # what came is there
            await share.turn()
            order.append(name)
            share.charge(time.monotonic() - SLICE_S)

    await asyncio.gather(*(work(busy, "busy", 5) for _ in range(20)), work(other, "other", 5))
    assert order.count("busy") == 100 and order.count("other") == 5
    last = len(order) - order[::-1].index("other")
    assert last <= 20  # of 105: one of the busy box's for each round
