"""One connection from a box through mitmproxy's protocol layers, without mitmproxy's master, addons or globals.

Every step at which more is known asks the policy again: CONNECT, ClientHello inside a tunnel, every request's head. An
upstream is dialled only at an address that was checked, while the layers go on using its name.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from mitmproxy import http
from mitmproxy.connection import Server
from mitmproxy.proxy import layer
from mitmproxy.proxy.layers import ClientTLSLayer, TCPLayer
from mitmproxy.proxy.layers.http import HTTPMode

from caisson_gate.decide import Decision, Kind, Reason, Request
from caisson_gate.exchange import Exchange
from caisson_gate.heads import MalformedHead, UnwantedProtocol
from caisson_gate.hello import MalformedHello, looks_like, read_hello
from caisson_gate.names import canonical_authority, canonical_host
from caisson_gate.proxy_http import Requests
from caisson_gate.proxy_layers import Entrance, GateHttpLayer
from caisson_gate.proxy_tls import HTTP_PROTOCOLS, fingerprint
from caisson_gate.proxy_transport import Transport
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


class GateConnection(Transport):
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
        super().__init__(arrival.first, reader, writer, options, room.dials, room.share)
        self.room = room
        self.arrival = arrival
        self.contexts = contexts
        self.about = {"conn": arrival.conn, "src_port": arrival.src_port, "orig_dst": arrival.dst}
        self.name_dns = None if arrival.explicit or arrival.name_dns is None else arrival.name_dns.encode()
        literal = f"[{arrival.dst[0]}]" if ":" in arrival.dst[0] else arrival.dst[0]  # as an authority is written
        self.name_connect = None if arrival.explicit or arrival.name_dns else literal.encode()
        self.port = arrival.dst[1]
        self.phase = room.served.phase
        """A connection belongs to the phase it began in, and ends with it."""
        self.tunnel: Literal["", "inspected", "opaque"] = ""
        """What CONNECT made of the connection."""
        self.head: Head | None = None
        """Of the request that is being read; HTTP/1 only."""
        self.requests = Requests(self)
        self.open: set[Exchange] = set()
        self.upstream_problem: str | None = None
        self._hello: dict[str, Any] | None = None
        self._tunnel_sni: bytes | None = None
        self._opaque_bytes = [0, 0]
        self._opaque_limit = 0
        context = self.layer.context
        context.server.address = (arrival.name_dns or arrival.dst[0], arrival.dst[1])
        self.layer = Entrance(context)
        self.hooks = {
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

    def is_checked(self, decision: Decision) -> bool:
        """Whether the address of an allowing decision is known already."""
        return decision.host is not None and (decision.host.text, decision.port) in self.targets

    async def checked(self, decision: Decision) -> Decision:
        """An allowing decision with its address looked up and judged, or the refusal that this led to."""
        host, port = decision.host, decision.port
        assert host is not None
        try:
            self.targets[(host.text, port)] = await self.room.target(host.text, port)
        except AddressDenied as denied:
            decision = replace(decision, allowed=False, reported=False, rule="hard", status=403)
            return replace(decision, reason=Reason.ADDRESS_DENIED, detail=str(denied)[:500])
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
            self.forget()

    def finish_all(self, error: str) -> None:
        """Write the end of every exchange that has none."""
        for exchange in list(self.open):
            if error == Reason.AFTER_DEADLINE.value:
                exchange.notes.setdefault("reason_code", error)
            exchange.finish(error=error)
            self.room.open.discard(exchange)
        self.open.clear()
        self.requests.end_websocket()
        if self.tunnel == "opaque":
            sent, received = self._opaque_bytes
            self.room.tell("tcp", **self.about, verdict="allow", opaque=True, req_len=sent, resp_len=received)
            self.tunnel = ""

    def fail(self, problem: BaseException) -> None:
        detail = f"{type(problem).__name__}: {problem}"
        with suppress(ValueError):  # the box is closed, and its journal with it
            self.room.tell("gate", **self.about, verdict="deny", reason_code=GATE_FAILED, detail=detail)

    def counted(self, size: int, from_box: bool) -> bool:
        if self.room.served.phase != self.phase:
            self.deny("connect", Reason.AFTER_DEADLINE, f"the connection began in the phase {self.phase}")
            return False
        if self.tunnel == "opaque":
            self._opaque_bytes[0 if from_box else 1] += size
            if self._opaque_bytes[1] > self._opaque_limit:
                self.deny("tcp", Reason.TOO_LARGE, f"more than {self._opaque_limit} bytes came", opaque=True)
                return False
            return True
        return self.requests.websocket is None or self.requests.count_frames(size, from_box=from_box)

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
            if self._opaque_may_begin(begun):
                ask.layer = TCPLayer(ask.context, ignore=True)
        elif (kind := looks_like(begun)) == "tls":
            ask.layer = ClientTLSLayer(ask.context)
        elif kind == "http":
            ask.layer = GateHttpLayer(ask.context, HTTPMode.transparent, self)
        elif kind is not None:
            self.deny("connect", Reason.PROTOCOL, "what came in the tunnel is neither TLS nor HTTP", first=begun[:64])
            self.abort()

    def _opaque_may_begin(self, begun: bytes) -> bool:
        """Whether the first bytes of an uninspected tunnel may go on, as those of a captured connection may.

        False also while too few have come. The server name is the tunnel's, or it would lead to another host behind
        the same front.
        """
        kind = looks_like(begun)
        if kind is None:
            return False
        hello = None
        if kind == "tls":
            try:
                hello = read_hello(begun)
            except MalformedHello as problem:
                self.deny("tls", Reason.PROTOCOL, str(problem), first=begun[:64])
                self.abort()
                return False
            if hello is None:
                return False
            self._tunnel_sni = hello.sni
        decision = self.room.decide(self.request("tls" if hello is not None else "tcp"))
        shown = {"name_sni": self.sni, "ech": hello.ech or None} if hello is not None else {"first": begun[:64]}
        self.tell("tls" if hello is not None else "tcp", decision, **shown)
        if not decision.allowed:
            self.abort()
        return decision.allowed

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
        if decision.allowed and self.room.recorded is None and not self.is_checked(decision):
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
        self._opaque_limit = decision.max_response_bytes
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
