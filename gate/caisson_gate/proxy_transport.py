"""The I/O of one connection: bytes to mitmproxy's layers, the layers' commands to sockets.

mitmproxy's own handler makes a task of every hook and writes every piece by itself. Here a hook that needs not wait is
answered in the same turn, what a turn sends to a socket goes out in one piece, and reads are larger: most of what the
gate adds is paid back by that. Reading stops when the other side does not take what it is sent, HTTP/2 included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, mode_specs
from mitmproxy.proxy.server import ConnectionIO, LiveConnectionHandler

from caisson_gate.proxy_held import held
from caisson_gate.share import Share

if TYPE_CHECKING:
    from mitmproxy.options import Options

    from caisson_gate.proxy_layers import GateHttpLayer
    from caisson_gate.resolve import Target

DIAL_S: Final = 15.0
IDLE_S: Final = 600
"""Without a byte in either direction. A model may think for minutes before its first; the deadline ends the rest."""
CHUNK: Final = 1 << 18
"""Most that is read at once of an upstream."""
PIECE: Final = 1 << 14
"""The same of a box, which may choose what costs most: chunks of one byte."""
H2_PIECE: Final = 1 << 12
"""The same of HTTP/2, where thirteen bytes are a request."""
WRITTEN: Final = 1 << 17
"""Bytes that may wait in a socket's buffer before the other side is no longer read."""
BUFFERED: Final = 1 << 20
"""The same for bytes that HTTP/2's flow control holds back."""
HELD: Final = 1 << 18
"""The same for bytes of the box that no layer has taken yet."""
CUT_BYTES: Final = 256 << 10
"""How much of a refused upload is read and thrown away, so that the refusal reaches a client that is still sending."""
CUT_S: Final = 2.0
UPSTREAMS: Final = 8
"""Connections to one upstream for one connection of the box: HTTP/2 may fan out over an HTTP/1 upstream."""

_MODE = mode_specs.ProxyMode.parse("regular")
_LOG = logging.getLogger(__name__)


class Transport(LiveConnectionHandler):
    """A connection of a box and the upstream connections it leads to."""

    def __init__(
        self,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        options: Options,
        dials: asyncio.Semaphore,
        share: Share,
    ) -> None:
        """``dials``: what one box may have open upstream, shared by all its connections; so is its time, ``share``."""
        self.from_box = Ahead(first, reader, share, PIECE)
        super().__init__(cast(asyncio.StreamReader, self.from_box), writer, options, _MODE)
        self._share = share
        self.timeout_watchdog.timeout = IDLE_S
        self.http: GateHttpLayer | None = None
        self.hooks: dict[str, Callable[..., Awaitable[None] | None]] = {}
        """By mitmproxy's names."""
        self.targets: dict[tuple[str, int], Target] = {}
        """Name and port to the address that was checked for them."""
        self._queue: deque[events.Event] = deque()
        self._busy = False
        self._out: dict[Connection, list[bytes]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._slots: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._dials = dials
        self._cutting = False
        self._cut_left = CUT_BYTES
        self._cut_timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    def counted(self, size: int, from_box: bool) -> bool:
        """Bytes arrived. False: they are too many, the connection ends."""
        raise NotImplementedError

    def fail(self, problem: BaseException) -> None:
        """Something of ours broke; `abort` comes next."""
        raise NotImplementedError

    # Events in, commands out

    async def server_event(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            from_box = event.connection is self.client
            if self._cutting and from_box:
                self._cut_left -= len(event.data)
                if self._cut_left < 0:
                    self.abort()
                return
            if not self.counted(len(event.data), from_box):
                self.abort()
                return
        self.timeout_watchdog.register_activity()  # type: ignore[no-untyped-call]
        self._queue.append(event)
        if self._busy:  # from within a turn: its loop will come to it
            return
        self._busy = True
        since = time.monotonic()
        try:
            while self._queue:
                self._turn(self._queue.popleft())
        except Exception as problem:
            self._queue.clear()
            self._broken(problem)
        finally:
            self._busy = False
            self._share.charge(since)
        self.flush()
        self._moved.set()

    def _turn(self, event: events.Event) -> None:
        hooks: list[commands.StartHook] = []
        for command in self.layer.handle_event(event):
            if isinstance(command, commands.SendData):
                if command.connection in self.transports:
                    self._out.setdefault(command.connection, []).append(command.data)
            elif isinstance(command, commands.StartHook):
                hooks.append(command)
            elif isinstance(command, commands.OpenConnection):
                handler = asyncio.create_task(self.open_connection(command))
                self.transports[command.connection] = ConnectionIO(handler=handler)
            elif isinstance(command, commands.RequestWakeup):
                timer = asyncio.create_task(self.wakeup(command))
                self.wakeup_timer.add(timer)
            elif isinstance(command, commands.CloseConnection):
                if command.connection in self.transports:
                    self.flush()
                    self.close_connection(command.connection, getattr(command, "half_close", False))
            elif not isinstance(command, commands.Log):
                raise RuntimeError(f"a command of an unknown kind: {command!r}")
        for hook in hooks:
            self._hook(hook)

    def _hook(self, hook: commands.StartHook) -> None:
        handler = self.hooks.get(hook.name)
        made = handler(*hook.args()) if handler is not None else None
        if made is not None:
            task = asyncio.create_task(self._later(hook, made))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        elif hook.blocking:
            self._queue.append(events.HookCompleted(hook))

    async def _later(self, hook: commands.StartHook, made: Awaitable[None]) -> None:
        try:
            await made
        except Exception as problem:
            self._broken(problem)
            return
        if hook.blocking:
            await self.server_event(events.HookCompleted(hook))

    def flush(self) -> None:
        """Hand what a turn sends to the sockets."""
        for connection, pieces in self._out.items():
            io = self.transports.get(connection)
            writer = io.writer if io is not None else None
            if isinstance(writer, asyncio.StreamWriter) and not writer.is_closing():
                writer.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._out.clear()

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """For the hooks that mitmproxy's handler fires by itself: nobody here wants them."""

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """mitmproxy's own log is not kept, except that a crash ends the connection."""
        if exc_info:
            problem = exc_info[1] if isinstance(exc_info, tuple) else None
            self._broken(problem or RuntimeError(message))

    def _broken(self, problem: BaseException) -> None:
        _LOG.error("gate: a connection failed", exc_info=problem)
        self.fail(problem)
        self.abort()

    # Flow control

    async def drain_writers(self) -> None:
        """Whoever reads faster than the other side takes, waits here."""
        for io in list(self.transports.values()):
            writer = io.writer
            if isinstance(writer, asyncio.StreamWriter) and writer.transport.get_write_buffer_size() > WRITTEN:
                try:
                    async with self._drain_lock:
                        await writer.drain()
                except OSError:
                    if io.handler is not None:
                        io.handler.cancel("the other side is gone")
        own = self.transports.get(self.client)
        from_box = own is not None and own.handler is asyncio.current_task()
        if self.http is not None and self.http.multiplexed:
            await self._held_back(towards_box=not from_box)
        while from_box and held(self.layer) > HELD and self.client in self.transports:
            self._moved.clear()
            await self._moved.wait()

    async def _held_back(self, *, towards_box: bool) -> None:
        assert self.http is not None
        while self.http.waiting(towards_box=towards_box) > BUFFERED and self.client in self.transports:
            self._moved.clear()
            await self._moved.wait()

    async def wakeup(self, request: commands.RequestWakeup) -> None:
        """A delay of nothing means: when the box has taken what it was sent."""
        if request.delay == 0:
            await self.drain_writers()
            if self.http is not None and self.http.multiplexed:
                await self._held_back(towards_box=True)
        await super().wakeup(request)

    # Upstream

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Dial the address that was checked for the server's name; nothing else is ever dialled."""
        server = command.connection
        assert isinstance(server, Server) and server.address is not None
        key = (server.address[0], server.address[1])
        if self.client.alpn != b"h2":  # one request after the other: the hosts before are done with
            for other, io in list(self.transports.items()):
                if other is not self.client and other is not server and io.handler is not None:
                    io.handler.cancel("another host is asked")
        async with self._slots.setdefault(key, asyncio.Semaphore(UPSTREAMS)), self._dials:
            await self._dial(command, server, self.targets.get(key))

    async def _dial(self, command: commands.OpenConnection, server: Server, target: Target | None) -> None:
        try:
            if target is None:
                raise OSError("the name has no address")
            server.timestamp_start = time.time()
            async with asyncio.timeout(DIAL_S):
                reader, writer = await asyncio.open_connection(target.address, target.port, limit=CHUNK)
        except (OSError, asyncio.CancelledError) as problem:
            server.error = str(problem) or ("timed out" if isinstance(problem, TimeoutError) else "cancelled")
            self.transports.pop(server, None)
            await self.server_event(events.OpenConnectionCompleted(command, server.error))
            if isinstance(problem, asyncio.CancelledError):
                raise
            return
        server.timestamp_tcp_setup = time.time()
        server.state = ConnectionState.OPEN
        server.peername = writer.get_extra_info("peername")
        server.sockname = writer.get_extra_info("sockname")
        ahead = cast(asyncio.StreamReader, Ahead(b"", reader, self._share, CHUNK))
        self.transports[server] = ConnectionIO(handler=asyncio.current_task(), reader=ahead, writer=writer)
        await self.server_event(events.OpenConnectionCompleted(command, None))
        await self.handle_connection(server)

    # Ends

    def abort(self) -> None:
        """End the connection at once, visibly unfinished."""
        io = self.transports.get(self.client)
        if io is not None and isinstance(io.writer, asyncio.StreamWriter):
            io.writer.transport.abort()
        if io is not None and io.handler is not None:
            io.handler.cancel("aborted")
        self._moved.set()

    def cut_upload(self) -> None:
        """Send nothing more, read a little more, then close: the refusal arrives, the upload does not."""
        self._cutting = True
        self.flush()
        io = self.transports.get(self.client)
        if io is not None and isinstance(io.writer, asyncio.StreamWriter) and io.writer.can_write_eof():
            io.writer.write_eof()
        self._cut_timer = asyncio.get_running_loop().call_later(CUT_S, self.abort)

    def forget(self) -> None:
        """After the end: nothing may fire any more."""
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        for task in self._waiting:
            task.cancel()


class Ahead:
    """A reader that first gives what was read already, then what there is, when it is the box's turn."""

    __slots__ = ("_first", "_reader", "_share", "most")

    def __init__(self, first: bytes, reader: asyncio.StreamReader, share: Share, most: int) -> None:
        self._first, self._reader, self._share = first, reader, share
        self.most = most
        """Bytes at once."""

    async def read(self, _size: int) -> bytes:
        """The next bytes; none at the end."""
        if self._first:
            first, self._first = self._first, b""
            return first
        data = await self._reader.read(self.most)
        await self._share.turn()
        return data
