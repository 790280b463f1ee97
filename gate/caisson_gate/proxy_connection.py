"""One connection from a box through mitmproxy's protocol layers, without mitmproxy's master, addons or globals.

Every step at which more is known asks the policy again: CONNECT, ClientHello inside a tunnel, every request's head. An
upstream is dialled only at an address that was checked, while the layers go on using its name.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from mitmproxy import http
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, mode_specs
from mitmproxy.proxy.layers import ClientTLSLayer, TCPLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.server import ConnectionIO, LiveConnectionHandler

from caisson_gate.decide import Decision, Kind, Reason, Request
from caisson_gate.exchange import Exchange
from caisson_gate.heads import MalformedHead, UnwantedProtocol
from caisson_gate.hello import MalformedHello, looks_like, read_hello
from caisson_gate.names import canonical_authority, canonical_host
from caisson_gate.proxy_http import Requests
from caisson_gate.proxy_layers import Entrance, GateHttpLayer
from caisson_gate.proxy_tls import HTTP_PROTOCOLS, fingerprint
from caisson_gate.refusal import GATE_FAILED, Refusal
from caisson_gate.resolve import AddressDenied

if TYPE_CHECKING:
    from mitmproxy import tls
    from mitmproxy.options import Options

    from caisson_gate.arrival import Arrival
    from caisson_gate.events import Kind as EventKind
    from caisson_gate.heads import Head
    from caisson_gate.proxy_room import Room
    from caisson_gate.proxy_tls import TlsContexts
    from caisson_gate.resolve import Target

DIAL_S: Final = 15.0
IDLE_S: Final = 120
CUT_BYTES: Final = 256 << 10
"""How much of a refused upload is read and thrown away, so that the refusal reaches a client that is still sending."""
CUT_S: Final = 2.0
UPSTREAMS: Final = 8
"""Connections to one upstream for one connection of the box: HTTP/2 may fan out over an HTTP/1 upstream."""
BUFFERED: Final = 1 << 20
"""Bytes held back by one side's HTTP/2 flow control before the other side is no longer read."""

_MODE = mode_specs.ProxyMode.parse("regular")
_LOG = logging.getLogger(__name__)


class GateConnection(LiveConnectionHandler):
    """Serves one arrival until it closes."""

    def __init__(
        self,
        room: Room,
        arrival: Arrival,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        options: Options,
        contexts: TlsContexts,
    ) -> None:
        ahead = _Ahead(arrival.first, reader)
        super().__init__(cast(asyncio.StreamReader, ahead), writer, options, _MODE)
        self.room = room
        self.arrival = arrival
        self.contexts = contexts
        self.timeout_watchdog.timeout = IDLE_S
        self.about = {"conn": arrival.conn, "src_port": arrival.src_port, "orig_dst": arrival.dst}
        self.name_dns = None if arrival.explicit or arrival.name_dns is None else arrival.name_dns.encode()
        self.name_connect = None if arrival.explicit or arrival.name_dns else arrival.dst[0].encode()
        self.port = arrival.dst[1]
        self.tunnel: Literal["", "inspected", "opaque"] = ""
        """What CONNECT made of the connection."""
        self.head: Head | None = None
        """Of the request that is being read; HTTP/1 only."""
        self.http: GateHttpLayer | None = None
        self.requests = Requests(self)
        self.open: set[Exchange] = set()
        self.upstream_problem: str | None = None
        self._hello: dict[str, Any] | None = None
        self._tunnel_sni: bytes | None = None
        self._targets: dict[tuple[str, int], Target] = {}
        self._slots: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._opaque_bytes = [0, 0]
        self._cutting = False
        self._cut_left = CUT_BYTES
        self._cut_timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        context = self.layer.context
        context.server.address = (arrival.name_dns or arrival.dst[0], arrival.dst[1])
        self.layer = Entrance(context)
        self._hooks: dict[str, Callable[..., Any]] = {
            "next_layer": self.on_next_layer,
            "tls_clienthello": self.on_client_hello,
            "tls_start_client": self.on_tls_start_client,
            "tls_start_server": self.on_tls_start_server,
            "tls_failed_client": self.on_tls_failed_client,
            "tls_failed_server": self.on_tls_failed_server,
            "http_connect": self.on_connect,
            "requestheaders": self.requests.on_request_head,
            "responseheaders": self.requests.on_answer_head,
            "response": self.requests.on_answer,
            "error": self.requests.on_error,
            "websocket_message": self.requests.on_websocket_message,
            "websocket_end": self.requests.on_websocket_end,
        }

    @property
    def sni(self) -> bytes | None:
        """The server name of the handshake that counts: the inner one of a tunnel."""
        return self._tunnel_sni if self.tunnel else self.arrival.name_sni

    def tls_fields(self) -> dict[str, Any]:
        """The box's TLS as part of an event."""
        if not self.client.tls:
            return {}
        return {
            "name_sni": self.sni,
            "tls": {**(self._hello or {}), "version": self.client.tls_version, "alpn": self.client.alpn},
        }

    def request(self, kind: Kind, scheme: str = "") -> Request:
        """What is known before any request's head is read."""
        return Request(
            kind,
            self.port,
            scheme,
            name_dns=self.name_dns,
            name_connect=self.name_connect,
            name_sni=self.sni,
            now=self.room.served.age,
            phase=self.room.served.phase,
        )

    async def checked(self, decision: Decision) -> Decision:
        """An allowing decision with its address looked up and judged, or the refusal that this led to."""
        host, port = decision.host, decision.port
        assert host is not None
        if (host.text, port) in self._targets:
            return decision
        try:
            self._targets[(host.text, port)] = await self.room.target(host.text, port)
        except AddressDenied as denied:
            return replace(decision, allowed=False, reason=Reason.ADDRESS_DENIED, status=403, detail=str(denied)[:500])
        except OSError:
            return decision  # the dial will fail, and say so as an upstream that cannot be reached
        return decision

    async def serve(self) -> None:
        """Until both sides are closed. Cancelled, it breaks the connection off and then lets the cancellation go on."""
        task = asyncio.ensure_future(self.handle_client())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.abort()
            late = self.room.served.deadline()
            passed = late is not None and time.monotonic() >= late
            self.finish_all(Reason.AFTER_DEADLINE.value if passed else "closed")
            await asyncio.wait([task], timeout=5.0)
            task.cancel()
            raise
        finally:
            self.finish_all("closed")
            if self._cut_timer is not None:
                self._cut_timer.cancel()

    def finish_all(self, error: str) -> None:
        """Write the end of every exchange that has none."""
        for exchange in list(self.open):
            if error == Reason.AFTER_DEADLINE.value:
                exchange.notes.setdefault("reason_code", error)
            exchange.finish(error=error)
        self.open.clear()
        self.requests.end_websocket()
        if self.tunnel == "opaque":
            sent, received = self._opaque_bytes
            self.room.tell("tcp", **self.about, verdict="allow", opaque=True, req_len=sent, resp_len=received)
            self.tunnel = ""

    # What mitmproxy asks for

    async def handle_hook(self, hook: commands.StartHook) -> None:
        handler = self._hooks.get(hook.name)
        if handler is None:
            return
        try:
            made = handler(*hook.args())
            if inspect.isawaitable(made):
                await made
        except Exception as problem:
            self.fail(problem)

    def fail(self, problem: BaseException) -> None:
        """Something of ours broke: the connection ends, and the journal says so."""
        _LOG.error("gate: a connection failed", exc_info=problem)
        self.room.tell(
            "gate", **self.about, verdict="deny", reason_code=GATE_FAILED, detail=f"{type(problem).__name__}: {problem}"
        )
        self.abort()

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """mitmproxy's own log is not kept, except that a crash in a layer ends the connection."""
        if exc_info:
            problem = exc_info[1] if isinstance(exc_info, tuple) else None
            self.fail(problem or RuntimeError(message))

    async def server_event(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            from_box = event.connection is self.client
            if self._cutting and from_box:
                self._cut_left -= len(event.data)
                if self._cut_left < 0:
                    self.abort()
                return
            if self.tunnel == "opaque":
                self._opaque_bytes[0 if from_box else 1] += len(event.data)
            elif not self.requests.count_frames(len(event.data), from_box=from_box):
                self.abort()
                return
        await super().server_event(event)
        self._moved.set()

    async def drain_writers(self) -> None:
        """Flow control, also where HTTP/2 holds data back: whoever reads faster than the other side takes, waits."""
        await super().drain_writers()  # type: ignore[no-untyped-call]
        if self.http is None:
            return
        io = self.transports.get(self.client)
        from_box = io is not None and io.handler is asyncio.current_task()
        while self.http.waiting(towards_box=not from_box) > BUFFERED and self.client in self.transports:
            self._moved.clear()
            await self._moved.wait()

    async def wakeup(self, request: commands.RequestWakeup) -> None:
        if request.delay == 0:
            await super().drain_writers()  # type: ignore[no-untyped-call]
            while self.http is not None and self.http.waiting(towards_box=True) > BUFFERED:
                self._moved.clear()
                await self._moved.wait()
        await super().wakeup(request)

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Dial the address that was checked for the server's name; nothing else is ever dialled."""
        server = command.connection
        assert isinstance(server, Server) and server.address is not None
        key = (server.address[0], server.address[1])
        async with self._slots.setdefault(key, asyncio.Semaphore(UPSTREAMS)):
            await self._dial(command, server, self._targets.get(key))

    async def _dial(self, command: commands.OpenConnection, server: Server, target: Target | None) -> None:
        try:
            if target is None:
                raise OSError("the name has no address")
            server.timestamp_start = time.time()
            async with asyncio.timeout(DIAL_S):
                reader, writer = await asyncio.open_connection(target.address, target.port)
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
        self.transports[server] = ConnectionIO(handler=asyncio.current_task(), reader=reader, writer=writer)
        await self.server_event(events.OpenConnectionCompleted(command, None))
        await self.handle_connection(server)

    # Layers and TLS

    def on_next_layer(self, ask: layer.NextLayer) -> None:
        stack = ask.context.layers
        begun: bytes = ask.data_client()  # type: ignore[no-untyped-call]
        if len(stack) == 1:
            mode = HTTPMode.regular if self.arrival.explicit else HTTPMode.transparent
            ask.layer = ClientTLSLayer(ask.context) if self.arrival.tls else GateHttpLayer(ask.context, mode, self)
        elif isinstance(stack[-1], ClientTLSLayer):
            ask.layer = GateHttpLayer(ask.context, HTTPMode.transparent, self)
        elif self.tunnel == "opaque":
            ask.layer = TCPLayer(ask.context, ignore=True)
        elif (kind := looks_like(begun)) == "tls":
            ask.layer = ClientTLSLayer(ask.context)
        elif kind == "http":
            ask.layer = GateHttpLayer(ask.context, HTTPMode.transparent, self)
        elif kind is not None:
            self.deny("connect", Reason.PROTOCOL, "what came in the tunnel is neither TLS nor HTTP", first=begun[:64])
            self.abort()

    def on_client_hello(self, data: tls.ClientHelloData) -> None:
        hello = data.client_hello
        self._hello = {"fingerprint": fingerprint(hello.cipher_suites, hello.extensions)}
        if not self.tunnel:
            return
        try:
            read = read_hello(hello.raw_bytes())
        except MalformedHello as problem:
            read = None
            self.deny("tls", Reason.PROTOCOL, str(problem))
        if read is None:
            self.abort()
            return
        self._tunnel_sni = read.sni
        decision = self.room.decide(self.request("tls", "https"))
        self.tell("tls", decision, name_sni=self.sni, ech=True if read.ech else None)
        if not decision.allowed:
            self.abort()

    def on_tls_start_client(self, data: tls.TlsData) -> None:
        asked = self.sni or self.name_dns or (self.name_connect or b"").rpartition(b":")[0] or self.name_connect
        named = canonical_host(asked or b"")
        data.ssl_conn = self.contexts.for_box(named.text if named is not None else "invalid")

    def on_tls_start_server(self, data: tls.TlsData) -> None:
        server = data.conn
        assert isinstance(server, Server) and server.address is not None
        server.sni = server.address[0]
        server.alpn_offers = [offer for offer in self.client.alpn_offers if offer in HTTP_PROTOCOLS]
        data.ssl_conn = self.contexts.for_upstream(server.address[0], server.alpn_offers)

    def on_tls_failed_client(self, data: tls.TlsData) -> None:
        error = data.conn.error or ""
        if "trust" in error:  # mitmproxy's words for each alert a client sends about a certificate, and for a plain end
            reason, detail = Reason.TLS_CLIENT_REJECTED_CA, "the client did not accept the gate's certificate, or left"
        else:
            reason, detail = Reason.PROTOCOL, "the TLS handshake with the box failed: " + error
        self.deny("tls", reason, detail, name_sni=self.sni, tls=self._hello)

    def on_tls_failed_server(self, data: tls.TlsData) -> None:
        self.upstream_problem = Reason.UPSTREAM_TLS_FAILED.value

    def check_form(self, head: Head) -> None:
        """Whether this is the place for a request of that form. UnwantedProtocol, MalformedHead."""
        proxying = self.arrival.explicit and not self.tunnel
        if head.method == b"CONNECT" and not proxying:
            raise UnwantedProtocol("a tunnel is asked of a host, not of the proxy")
        if proxying and head.method != b"CONNECT" and head.absolute is None:
            raise MalformedHead("a proxy is asked for a path without a host")

    async def on_connect(self, flow: http.HTTPFlow) -> None:
        """CONNECT on the proxy port."""
        assert self.head is not None
        named = canonical_authority(self.head.target, None)
        self.name_connect = self.head.target
        self.port = named[1] if named is not None else 0
        decision = self.room.decide(self.request("connect"))
        if decision.allowed and self.room.recorded is None:
            decision = await self.checked(decision)
        self.tell("connect", decision, method=b"CONNECT")
        if not decision.allowed:
            refusal = Refusal.of(decision)
            body = refusal.body()
            flow.response = http.Response.make(refusal.status, body, http.Headers(refusal.headers(len(body))))
            flow.response.headers["connection"] = "close"
            return
        assert decision.host is not None
        self.tunnel = "opaque" if decision.opaque else "inspected"
        flow.request.data.host, flow.request.data.port = decision.host.text, decision.port

    # Ends

    def tell(self, kind: EventKind, decision: Decision, **fields: Any) -> None:
        """Write a decision about the connection."""
        self.room.tell(
            kind,
            **self.about,
            name_dns=self.arrival.name_dns,
            name_connect=self.name_connect,
            verdict="report" if decision.reported else "allow" if decision.allowed else "deny",
            rule=decision.rule,
            reason_code=decision.reason.value if decision.reason is not None else None,
            detail=decision.detail or None,
            opaque=decision.opaque or None,
            **fields,
        )

    def deny(self, kind: EventKind, reason: Reason, detail: str, **fields: Any) -> None:
        """Write a denial that no policy had to be asked for."""
        about = {**self.about, "name_dns": self.arrival.name_dns, "name_connect": self.name_connect}
        self.room.tell(
            kind, **about, verdict="deny", rule="hard", reason_code=reason.value, detail=detail[:500], **fields
        )

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
        io = self.transports.get(self.client)
        if io is not None and isinstance(io.writer, asyncio.StreamWriter) and io.writer.can_write_eof():
            io.writer.write_eof()
        self._cut_timer = asyncio.get_running_loop().call_later(CUT_S, self.abort)


class _Ahead:
    """A reader that first gives what was read already."""

    __slots__ = ("_first", "_reader")

    def __init__(self, first: bytes, reader: asyncio.StreamReader) -> None:
        self._first, self._reader = first, reader

    async def read(self, size: int) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._reader.read(size)
