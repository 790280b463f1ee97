"""The gate's own kinds of mitmproxy's HTTP layers.

mitmproxy's sans-io layers do the protocol work. What differs here: heads are read strictly before they are parsed; a
refusal is sent at once and an upload to a refused request is cut, not read; bodies go through the exchange chunk by
chunk and are never collected; every failure is answered in the gate's own form. Written for the layer interface that
mitmproxy 11.0 and 12.x have in common; the differences are named where they are.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, cast

import h2.errors  # type: ignore[import-untyped]
import h2.events  # type: ignore[import-untyped]
from mitmproxy import flow as mflow
from mitmproxy import http
from mitmproxy.net.http import status_codes
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import (
    DropStream,
    HttpLayer,
    HTTPMode,
    HttpStream,
    SendHttp,
    _events,
    validate_request,
)
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Connection, Http2Server

from caisson_gate.heads import MalformedHead, UnwantedProtocol, end_of_head, read_head
from caisson_gate.proxy_transport import H2_PIECE
from caisson_gate.refusal import UPSTREAM_FAILED, Refusal

if TYPE_CHECKING:
    from mitmproxy.proxy.context import Context

    from caisson_gate.exchange import Exchange
    from caisson_gate.proxy_connection import GateConnection

EXCHANGE: Final = "caisson"
"""Key of the exchange in a flow's metadata."""
MAX_REWRITE: Final = 64 << 20
"""Of an answer that the gate has to read whole, in bytes."""

MAX_RESETS: Final = 100
"""Streams that a box may take back in one piece: as many as it may have open."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

_CODES: Any = getattr(_events, "ErrorCode", None)  # 12: an enum; 11: HTTP status codes
_KILL: Any = _CODES.KILL if _CODES is not None else status_codes.NO_RESPONSE
_CANCEL: Any = _CODES.CANCEL if _CODES is not None else status_codes.CLIENT_CLOSED_REQUEST


def exchange_of(flow: http.HTTPFlow) -> Exchange | None:
    """The gate's side of a flow; None before the decision."""
    found = flow.metadata.get(EXCHANGE)
    return None if found is None or isinstance(found, Refusal) else cast("Exchange", found)


def refusal_of(flow: http.HTTPFlow) -> Refusal | None:
    """What the flow is to be refused with, if it is."""
    found = flow.metadata.get(EXCHANGE)
    if found is None or isinstance(found, Refusal):
        return found
    refusal: Refusal | None = found.refusal
    return refusal


class Entrance(layer.Layer):
    """The bottom of every stack, since mitmproxy's TLS layer looks below itself."""

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        self.child_layer = child = layer.NextLayer(self.context, ask_on_start=True)
        self._handle_event = child.handle_event  # type: ignore[method-assign]
        yield from child.handle_event(event)


class GateHttp1Server(Http1Server):
    """Reads every head strictly first."""

    def __init__(self, context: Context, gate: GateConnection) -> None:
        super().__init__(context)
        self.gate = gate

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        if not isinstance(event, events.DataReceived):
            yield from super().read_headers(event)
            return
        buffer = bytes(self.buf)
        try:
            size = end_of_head(buffer)
            if not size:
                return
            head = read_head(buffer[:size])
            self.gate.check_form(head)
            self.gate.head = head
        except (MalformedHead, UnwantedProtocol) as problem:
            yield from self.refuse_head(buffer, problem)
            return
        made = super().read_headers(event)
        first = next(made, None)
        if first is None:
            return
        if isinstance(first, commands.SendData):  # mitmproxy's own parser refuses, with an answer and without a hook
            made.close()
            yield from self.refuse_head(buffer, MalformedHead("the target is no URL"))
            return
        yield first
        yield from made

    def refuse_head(self, buffer: bytes, problem: MalformedHead | UnwantedProtocol) -> layer.CommandGenerator[None]:
        """Answer a head that goes no further, and close."""
        refusal = self.gate.requests.bad_head(buffer, problem)
        yield commands.SendData(self.conn, refusal_bytes(refusal))
        yield commands.CloseConnection(self.conn)
        self.state = self.done


class GateHttp2Server(Http2Server):
    """Tells the journal when the box breaks the protocol, which ends the connection without any hook."""

    def __init__(self, context: Context, gate: GateConnection) -> None:
        super().__init__(context)
        self.gate = gate
        self.resets = 0
        """In one piece of what came."""

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, events.DataReceived):
            self.resets = 0
        yield from super()._handle_event(event)

    def handle_h2_event(self, event: h2.events.Event) -> Generator[commands.Command, Any, bool]:
        if isinstance(event, h2.events.StreamReset):
            self.resets += 1
            if self.resets > MAX_RESETS:
                yield from self.protocol_error("streams are begun to be reset", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                return True
        return (yield from super().handle_h2_event(event))

    def protocol_error(self, message: str, error_code: int = 1) -> layer.CommandGenerator[None]:
        self.gate.requests.broken_protocol(message)
        yield from super().protocol_error(message, error_code)


class GateHttpLayer(HttpLayer):
    """Makes the gate's own streams."""

    def __init__(self, context: Context, mode: HTTPMode, gate: GateConnection) -> None:
        super().__init__(context, mode)
        self.gate = gate
        gate.http = self
        if context.client.alpn == b"h2":
            gate.from_box.most = H2_PIECE
        kind = GateHttp2Server if context.client.alpn == b"h2" else GateHttp1Server
        self.connections[context.client] = kind(self.context.fork(), gate)

    def make_stream(self, stream_id: int) -> layer.CommandGenerator[None]:
        self.streams[stream_id] = stream = GateStream(self.context.fork(), stream_id, self.gate)
        yield from self.event_to_child(stream, events.Start())

    def waiting(self, *, towards_box: bool) -> int:
        """Bytes in HTTP/2 send buffers, which the other side's flow control holds back."""
        total = 0
        for connection, top in self.connections.items():
            if (connection is self.context.client) is not towards_box:
                continue
            found: Any = top
            while found is not None and not isinstance(found, Http2Connection):
                found = getattr(found, "child_layer", None)
            if found is not None:
                total += sum(len(one.data) for buffer in found.h2_conn.stream_buffers.values() for one in buffer)
        return total

    @property
    def multiplexed(self) -> bool:
        """Whether either side can speak HTTP/2 here."""
        return any(one.alpn == b"h2" for one in self.connections)

    @property
    def h2(self) -> Http2Server | None:
        """The box's side, when it speaks HTTP/2."""
        found = self.connections.get(self.context.client)
        return found if isinstance(found, Http2Server) else None


class GateStream(HttpStream):
    """One request and its answer."""

    def __init__(self, context: Context, stream_id: int, gate: GateConnection) -> None:
        super().__init__(context, stream_id)
        self.gate = gate
        self.dialled = False
        self.answering = False

    @property
    def exchange(self) -> Exchange | None:
        flow = getattr(self, "flow", None)
        return None if flow is None else exchange_of(flow)

    @property
    def _has_request(self) -> bool:
        """Whether nothing more of the request will come: what came during a hook still waits in the queue."""
        waits = any(isinstance(event, RequestEndOfMessage) for event in self._paused_event_queue)
        return waits or self.client_state == self.state_done

    # Refusals

    def check_killed(self, emit_error_hook: bool) -> layer.CommandGenerator[bool]:
        refusal = refusal_of(self.flow)
        if refusal is not None:
            yield from self.refuse(refusal)
            return True
        return (yield from super().check_killed(emit_error_hook))

    def check_invalid(self, request: bool) -> layer.CommandGenerator[bool]:
        if not request:
            assert self.flow.response is not None
            try:
                validate_headers(self.flow.response)
            except ValueError as malformed:
                exchange = self.exchange
                if exchange is not None:
                    detail = exchange.told(f"the answer's head is malformed: {malformed}")
                    exchange.refuse(502, UPSTREAM_FAILED, detail, verdict="error")
                    yield from self.check_killed(True)
                    return True
        problem = self._problem() if request else None
        if problem is None:
            return False
        yield from self.refuse(self.gate.requests.bad_request(self.flow, problem))
        return True

    def _problem(self) -> str | None:
        """What is wrong with the request's head, beyond what the reader of its protocol has found."""
        request = self.flow.request
        if self.context.client.alpn == b"h2":  # the strict reader of HTTP/1 has looked already
            for name, value in request.headers.fields:
                if not _NAME.fullmatch(name) or _CONTROL.search(value):
                    return "a header's name or value holds a byte that HTTP/1 has no room for"
        return validate_request(self.mode, request, True)

    def refuse(self, refusal: Refusal) -> layer.CommandGenerator[None]:
        """Answer in the upstream's place and end the stream; what the box still sends of it is cut off."""
        exchange = self.exchange
        if exchange is not None:
            exchange.finish()
        ended = self._has_request
        self.client_state = self.server_state = self.state_errored
        self.flow.live = False
        yield from self.leave_upstream()
        client, h2 = self.context.client, self.gate.http.h2 if self.gate.http is not None else None
        if self.answering:
            yield SendHttp(ResponseProtocolError(self.stream_id, refusal.detail, _KILL), client)
            return
        body = b"" if self.flow.request.method == "HEAD" else refusal.body()
        answer = http.Response(
            http_version=b"HTTP/2.0" if h2 is not None else b"HTTP/1.1",
            status_code=refusal.status,
            reason=b"" if h2 is not None else status_codes.RESPONSES.get(refusal.status, "Refused").encode(),
            headers=http.Headers(refusal.headers(len(refusal.body()))),
            content=None,
            trailers=None,
            timestamp_start=0.0,
            timestamp_end=0.0,
        )
        if h2 is None:
            answer.headers["connection"] = "close"
        yield SendHttp(ResponseHeaders(self.stream_id, answer, not body), client)
        if body:
            yield SendHttp(ResponseData(self.stream_id, body), client)
        yield SendHttp(ResponseEndOfMessage(self.stream_id), client)
        if not ended:
            if h2 is None:
                self.gate.cut_upload()
            elif not h2.is_closed(self.stream_id):
                h2.h2_conn.reset_stream(self.stream_id, 0)
                yield commands.SendData(client, h2.h2_conn.data_to_send())
        yield DropStream(self.stream_id)

    def leave_upstream(self) -> layer.CommandGenerator[None]:
        """Break off what was begun upstream."""
        if self.dialled:
            self.dialled = False
            yield SendHttp(RequestProtocolError(self.stream_id, "refused", _CANCEL), self.context.server)

    def handle_protocol_error(
        self, event: RequestProtocolError | ResponseProtocolError
    ) -> layer.CommandGenerator[None]:
        exchange = self.exchange
        unanswered = self.client_state != self.state_errored and not self.answering
        if isinstance(event, ResponseProtocolError) and exchange is not None and unanswered and not exchange.ended:
            reason = self.gate.upstream_problem or UPSTREAM_FAILED
            exchange.refuse(502, reason, exchange.told(event.message), verdict="error")
            self.flow.error = mflow.Error(event.message)
            self.dialled = False
            assert exchange.refusal is not None
            yield from self.refuse(exchange.refusal)
            return
        yield from super().handle_protocol_error(event)

    def make_server_connection(self) -> layer.CommandGenerator[bool]:
        if (yield from super().make_server_connection()):
            self.dialled = True
            exchange = self.exchange
            if exchange is not None and self.flow.server_conn.peername:
                exchange.upstream = self.flow.server_conn.peername[0]
            return True
        return False

    # Request bodies

    def state_stream_request_body(self, event: RequestData | RequestEndOfMessage) -> layer.CommandGenerator[None]:
        exchange = self.exchange
        if isinstance(event, RequestData) and exchange is not None:
            if exchange.take_request(event.data):
                yield SendHttp(RequestData(self.stream_id, event.data), self.context.server)
            else:
                assert exchange.refusal is not None
                yield from self.refuse(exchange.refusal)
            return
        if isinstance(event, RequestEndOfMessage) and exchange is not None:
            exchange.end_request()
        yield from super().state_stream_request_body(event)

    def state_consume_request_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Only replay gets here with a body: it is hashed, nothing is kept of it in memory."""
        exchange = self.exchange
        if exchange is None:
            yield from super().state_consume_request_body(event)
        elif isinstance(event, RequestData):
            if not exchange.take_request(event.data):
                assert exchange.refusal is not None
                yield from self.refuse(exchange.refusal)
        elif isinstance(event, RequestEndOfMessage):
            exchange.end_request()
            if exchange.room.recorded is None:
                yield from super().state_consume_request_body(event)
                return
            self.client_state = self.state_done
            self.gate.requests.find_recorded(self.flow, exchange)
            if exchange.refusal is not None:
                yield from self.refuse(exchange.refusal)
            else:
                yield from self.begin_recorded()

    # Answers

    def start_response_stream(self) -> layer.CommandGenerator[None]:
        self.answering = True
        yield from super().start_response_stream()

    def state_stream_response_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        exchange = self.exchange
        if exchange is None:
            yield from super().state_stream_response_body(event)
        elif isinstance(event, ResponseData):
            chunk = exchange.take_answer(event.data)
            if chunk is None:
                yield from self.cut_answer(exchange)
            elif chunk:
                yield SendHttp(ResponseData(self.stream_id, chunk), self.context.client)
        elif isinstance(event, ResponseTrailers) and exchange.masking:
            return  # nothing of them is masked
        else:
            if isinstance(event, ResponseEndOfMessage):
                self.dialled = False
                if rest := exchange.end_answer():
                    yield SendHttp(ResponseData(self.stream_id, rest), self.context.client)
            yield from super().state_stream_response_body(event)

    def state_consume_response_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        exchange = self.exchange
        if exchange is not None and isinstance(event, ResponseData):
            size = len(self.response_body_buf) + len(event.data)
            if size > MAX_REWRITE or not exchange.answer_fits(size):
                exchange.refuse(502, "too_large", "the answer is too large to be read by the gate")
                assert exchange.refusal is not None
                yield from self.refuse(exchange.refusal)
                return
        if isinstance(event, ResponseEndOfMessage):
            self.dialled = False
        yield from super().state_consume_response_body(event)

    def cut_answer(self, exchange: Exchange) -> layer.CommandGenerator[None]:
        """Too much came: the box is shown that the answer is not whole."""
        exchange.finish(error="cut off")
        self.client_state = self.server_state = self.state_errored
        self.flow.live = False
        yield from self.leave_upstream()
        if self.gate.http is not None and self.gate.http.h2 is None:
            self.gate.abort()
        else:
            yield SendHttp(ResponseProtocolError(self.stream_id, "too large", _KILL), self.context.client)

    # Replay

    def begin_recorded(self) -> layer.CommandGenerator[None]:
        """Send the head of a recorded answer; its body follows in chunks, as fast as the box takes them."""
        assert self.flow.response is not None
        self.answering = True
        self.server_state = self.state_errored
        self._handle_event = self._handle_while_serving
        yield SendHttp(ResponseHeaders(self.stream_id, self.flow.response, False), self.context.client)
        yield from self.serve_recorded()

    def _handle_while_serving(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, events.Wakeup):
            yield from self.serve_recorded()
        else:
            yield from super()._handle_event(event)

    def serve_recorded(self) -> layer.CommandGenerator[None]:
        exchange = self.exchange
        if exchange is None or exchange.ended:
            return
        chunk = self.gate.requests.next_recorded(exchange)
        if chunk:
            exchange.take_answer(chunk)
            yield SendHttp(ResponseData(self.stream_id, chunk), self.context.client)
            yield commands.RequestWakeup(0.0)
            return
        exchange.end_answer()
        exchange.finish()
        self.flow.live = False
        self.server_state = self.state_done
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield DropStream(self.stream_id)


def refusal_bytes(refusal: Refusal) -> bytes:
    """A refusal as HTTP/1, after which the connection closes."""
    body = refusal.body()
    reason = status_codes.RESPONSES.get(refusal.status, "Refused")
    head = b"".join(b"%s: %s\r\n" % pair for pair in refusal.headers(len(body)))
    return b"HTTP/1.1 %d %s\r\n%sconnection: close\r\n\r\n%s" % (refusal.status, reason.encode(), head, body)
