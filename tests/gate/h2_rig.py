"""HTTP/2 without a browser: a client that can say anything, and a small upstream."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from http_rig import LIMIT_S, Box, Upstream, World

Fields = Sequence[tuple[str, str]]


@dataclass
class Stream:
    """What came back on one stream."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    reset: int | None = None
    ended: bool = False


class H2Client:
    """One connection; headers go out as they are given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.conn = h2.connection.H2Connection(config)
        self.streams: dict[int, Stream] = {}
        self.closed = False
        self.taking = True
        """Whether data is acknowledged, so that more may come."""
        self.conn.initiate_connection()
        self.flush()

    @classmethod
    async def open(cls, here: Box, name: str) -> H2Client:
        context = ssl.create_default_context(cadata=here.authority.pem.decode())
        context.set_alpn_protocols(["h2"])
        port = await here.listen(name)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "h2", chosen
        return cls(reader, writer)

    def flush(self) -> None:
        self.writer.write(self.conn.data_to_send())

    def send(self, fields: Fields, body: bytes | None = None, *, more: bool = False) -> int:
        """Begin a stream."""
        stream = self.conn.get_next_available_stream_id()
        self.streams[stream] = Stream()
        self.conn.send_headers(stream, list(fields), end_stream=body is None and not more)
        if body is not None:
            self.conn.send_data(stream, body, end_stream=not more)
        self.flush()
        return stream

    def get(
        self, host: str, path: str = "/", extra: Fields = (), method: str = "GET", body: bytes | None = None
    ) -> int:
        """A usual request."""
        pseudo = [(":method", method), (":scheme", "https"), (":path", path), (":authority", host)]
        return self.send([*pseudo, *extra], body)

    async def step(self) -> bool:
        """Take in what comes next; False at the end."""
        data = await asyncio.wait_for(self.reader.read(1 << 16), LIMIT_S)
        if not data:
            self.closed = True
            return False
        for event in self.conn.receive_data(data):
            stream = self.streams.get(getattr(event, "stream_id", None) or 0)
            if isinstance(event, h2.events.ConnectionTerminated):
                self.closed = True
            elif stream is None:
                continue
            elif isinstance(event, h2.events.ResponseReceived):
                stream.headers = {str(name): str(value) for name, value in event.headers}
                stream.status = int(stream.headers[":status"])
            elif isinstance(event, h2.events.DataReceived):
                stream.body += event.data
                if self.taking:
                    self.conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                stream.ended = True
            elif isinstance(event, h2.events.StreamReset):
                stream.reset = int(event.error_code)
        self.flush()
        return not self.closed

    async def wait(self, stream: int) -> Stream:
        """Until the stream is over."""
        one = self.streams[stream]
        while not one.ended and one.reset is None and not self.closed:
            with contextlib.suppress(ConnectionError):
                if not await self.step():
                    break
        return one

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def h2_upstream(world: World, name: str, body: bytes = b"over h2\n", pieces: int = 1) -> AsyncIterator[Upstream]:
    """Answers every stream with ``pieces`` times the body, as flow control allows."""
    kept = Upstream(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.connections += 1
        conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        conn.initiate_connection()
        writer.write(conn.data_to_send())
        left: dict[int, int] = {}

        async def pump() -> None:
            for stream in list(left):
                while left[stream]:
                    room = min(conn.local_flow_control_window(stream), conn.max_outbound_frame_size, left[stream])
                    if room <= 0:
                        break
                    conn.send_data(stream, (body * (room // len(body) + 1))[:room])
                    left[stream] -= room
                    writer.write(conn.data_to_send())
                    await writer.drain()
                if not left[stream]:
                    conn.end_stream(stream)
                    del left[stream]

        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            while data := await reader.read(1 << 16):
                for event in conn.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        kept.heads.append(b"".join(n + b": " + v + b"\n" for n, v in event.headers))
                        kept.seen += kept.heads[-1]
                    elif isinstance(event, h2.events.DataReceived):
                        kept.seen += event.data[: 1 << 10]
                        conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, h2.events.StreamEnded):
                        conn.send_headers(event.stream_id, [(b":status", b"200"), (b"alt-svc", b'h3=":443"')])
                        left[event.stream_id] = len(body) * pieces
                    elif isinstance(event, h2.events.StreamReset):
                        left.pop(event.stream_id, None)
                await pump()
                writer.write(conn.data_to_send())
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=world.tls(name, ("h2",)))
    kept.port = server.sockets[0].getsockname()[1]
    world.pins[name] = ("127.0.0.1", kept.port)
    try:
        yield kept
    finally:
        server.close()
