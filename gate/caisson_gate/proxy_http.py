"""Requests, answers and websocket messages of one connection: decided, rewritten for the way out, recorded."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mitmproxy import http

from caisson_gate.decide import Decision, Reason, Request
from caisson_gate.events import Wide
from caisson_gate.exchange import Exchange, body_fields, head_fields
from caisson_gate.forwarded import forwarded, hyphened
from caisson_gate.hosted import Overheard, speaks_json
from caisson_gate.names import canonical_authority
from caisson_gate.proxy_layers import EXCHANGE, exchange_of
from caisson_gate.proxy_room import AT_ONCE
from caisson_gate.refusal import GATE_BUSY, GATE_FAILED, HEADER, NOT_RECORDED, UPSTREAM_FAILED, Refusal
from caisson_gate.rewriting import planned, prepare, rewrite, without_body

if TYPE_CHECKING:
    from caisson_gate.answers import Planned
    from caisson_gate.heads import MalformedHead, UnwantedProtocol
    from caisson_gate.proxy_connection import GateConnection

CHUNK: Final = 1 << 16
_NOT_ANSWERED: Final = frozenset(
    {b"alt-svc", b"proxy-authenticate", b"proxy-connection", b"sec-websocket-extensions", HEADER.encode()}
)
MAX_MESSAGE: Final = 16 << 20
"""Of one websocket message in bytes: it is held in memory until it is whole."""
_READABLE: Final = frozenset({b"", b"identity", b"gzip", b"x-gzip", b"deflate"})


class Requests:
    """The HTTP side of one connection."""

    def __init__(self, gate: GateConnection) -> None:
        self.gate = gate
        self.room = gate.room
        self.websocket: Exchange | None = None
        self.frames = [0, 0]
        self.message = [0, 0]
        """Bytes since the last whole message, each way."""

    # What the box asks

    def bad_head(self, buffer: bytes, problem: MalformedHead | UnwantedProtocol) -> Refusal:
        """A head that is not parsed any further."""
        from caisson_gate.heads import MalformedHead

        malformed = isinstance(problem, MalformedHead)
        reason = Reason.MALFORMED if malformed else Reason.PROTOCOL
        self.gate.deny("http", reason, str(problem), name_sni=self.gate.sni, first=buffer[:512], status=400)
        return Refusal(400, "hard", reason.value, str(problem))

    def bad_request(self, flow: http.HTTPFlow, problem: str) -> Refusal:
        """A request that the layers will not carry, such as a tunnel inside a tunnel."""
        request = flow.request
        reason = Reason.PROTOCOL if request.method == "CONNECT" else Reason.MALFORMED
        about = {"method": request.data.method, "name_host": request.data.authority or None, "status": 400}
        self.gate.deny("http", reason, problem, name_sni=self.gate.sni, url=Wide(request.data.path), **about)
        return Refusal(400, "hard", reason.value, problem[:500])

    def broken_protocol(self, problem: str) -> None:
        """The box broke HTTP/2; its connection ends."""
        self.gate.deny("http", Reason.MALFORMED, problem, **self.gate.tls_fields())

    def on_request_head(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """Decide; then make of the request what goes upstream. Waits only for an address that is not known yet."""
        if flow.error is not None:  # refused by the layers already
            return None
        asked, url = self._asked(flow.request)
        decision, plan = self.room.decide(asked), None
        if decision.allowed and self.room.recorded is None:
            decision, plan = planned(self.room, decision, asked.accept)
            if decision.allowed and not self.gate.is_checked(decision):
                return self._after_check(flow, asked, url, decision, plan)
        self._begin(flow, asked, url, decision, plan)
        return None

    async def _after_check(
        self, flow: http.HTTPFlow, asked: Request, url: bytes, decision: Decision, plan: Planned | None
    ) -> None:
        try:
            decision = await self.gate.checked(decision)
        except asyncio.CancelledError:  # the box left meanwhile: that it asked is told all the same
            self._begin(flow, asked, url, decision, plan)
            if (exchange := exchange_of(flow)) is not None:
                exchange.finish(error="the connection ended before its target was known")
            raise
        self._begin(flow, asked, url, decision, plan)

    def _begin(self, flow: http.HTTPFlow, asked: Request, url: bytes, decision: Decision, plan: Planned | None) -> None:
        gate, request = self.gate, flow.request
        seq = self.room.tell(
            "http",
            **gate.about,
            **gate.tls_fields(),
            name_dns=gate.arrival.name_dns,
            name_connect=gate.name_connect,
            name_host=asked.name_host,
            method=asked.method,
            url=Wide(self.room.redactor.whole(url)),
            target=_target(asked, decision, self.room.redactor.whole),
            verdict="report" if decision.reported else "allow" if decision.allowed else "deny",
            rule=decision.rule,
            reason_code=decision.reason.value if decision.reason is not None else None,
            detail=decision.detail or None,
            status=None if decision.allowed else decision.status,
            websocket=True if asked.kind == "ws" else None,
            req=head_fields(self.room, request.data.http_version, request.headers.fields),
        )
        if not decision.allowed:
            self.room.denied += 1
            flow.metadata[EXCHANGE] = Refusal.of(decision)
            return
        exchange = Exchange(self.room, seq, decision, gate.about, self._ended)
        gate.open.add(exchange)
        self.room.open.add(exchange)
        flow.metadata[EXCHANGE] = exchange
        exchange.planned = plan
        if len(self.room.open) > AT_ONCE:
            exchange.refuse(503, GATE_BUSY, f"the box has {AT_ONCE} requests under way")
            return
        exchange.websocket = asked.kind == "ws"
        exchange.key = (asked.scheme, asked.method or b"", asked.query)
        if asked.method == b"POST" and speaks_json(asked.content_type):
            exchange.heard["asked"] = Overheard()
        if self.room.recorded is None:
            self._rewrite(flow, exchange, asked)
        else:
            flow.request.stream = False

    def _ended(self, exchange: Exchange) -> None:
        self.gate.open.discard(exchange)
        self.room.open.discard(exchange)

    def _asked(self, request: http.Request) -> tuple[Request, bytes]:
        """The request as the policy sees it, and its URL as the box wrote it."""
        gate, head = self.gate, self.gate.head
        fields = {name.lower(): value for name, value in request.headers.fields}
        claims: list[bytes]
        if request.data.http_version == b"HTTP/2.0":
            method, target = request.data.method, request.data.path
            claims = [request.data.authority] if request.data.authority else []
            claims += [value for name, value in request.headers.fields if name.lower() == b"host"]
            websocket, absolute = False, None
            length = fields.get(b"content-length")
        else:
            assert head is not None
            method, target, websocket, absolute = head.method, head.target, head.websocket, head.absolute
            claims = [] if head.host is None else [head.host]
            length = None if b"transfer-encoding" in fields else fields.get(b"content-length", b"0")
        scheme = "https" if gate.client.tls else "http"
        port = gate.port
        if absolute is not None:
            named, authority, target = absolute
            if named.decode("ascii", "replace") != scheme:
                scheme = "other"
            claims.insert(0, authority)
            if gate.arrival.explicit and not gate.tunnel:
                known = canonical_authority(authority, 80)
                gate.name_connect, port = authority, known[1] if known is not None else 80
        path, mark, query = target.partition(b"?")
        asked = Request(
            "ws" if websocket else "http",
            port,
            scheme,
            name_dns=gate.name_dns,
            name_connect=gate.name_connect,
            name_sni=gate.sni,
            name_host=_one(claims, port, scheme),
            method=method,
            path=path,
            query=query if mark else None,
            length=int(length) if length is not None and length.isdigit() else None,
            now=self.room.served.age,
            phase=self.room.served.phase,
            content_type=fields.get(b"content-type"),
            accept=fields.get(b"accept"),
        )
        return asked, scheme.encode() + b"://" + (claims[0] if claims else b"") + target

    def _rewrite(self, flow: http.HTTPFlow, exchange: Exchange, asked: Request) -> None:
        """Upstream goes what was decided on, in canonical form, and nothing the client wrote in its place."""
        request, decision = flow.request, exchange.decision
        assert decision.host is not None
        usual = 443 if asked.scheme == "https" else 80
        authority = decision.host.authority + (f":{decision.port}" if decision.port != usual else "")
        query = b"" if asked.query is None else b"?" + asked.query
        request.data.host, request.data.port = decision.host.text, decision.port
        request.data.scheme = asked.scheme.encode()
        request.data.path = asked.path if asked.path == b"*" else decision.path + query
        fields = forwarded(request.headers.fields)
        if request.is_http2:
            request.data.authority = authority.encode()
            fields = [pair for pair in fields if pair[0].lower() != b"host"]
        else:
            request.data.authority = b""
            fields = [
                (b"Host", authority.encode()) if name.lower() == b"host" else (name, value) for name, value in fields
            ]
        if decision.inject is not None:
            try:
                name, value = exchange.room.credentials.header(decision.inject)
            except KeyError:
                exchange.refuse(502, GATE_FAILED, f"the gate does not hold env:{decision.inject.env}", verdict="error")
                return
            fields = [pair for pair in fields if hyphened(pair[0]) not in (name, b"accept-encoding", b"range")]
            fields += [(name, value), (b"accept-encoding", b"identity")]
            exchange.notes["injected"] = decision.inject.env
        request.headers = http.Headers(fields)
        request.stream = True
        prepare(exchange, request)

    # What the upstream answers

    def on_answer_head(self, flow: http.HTTPFlow) -> None:
        """Look at the answer's head before the box gets any of it."""
        exchange, response = exchange_of(flow), flow.response
        if exchange is None or response is None:
            return
        data = response.data
        received = response.headers.fields
        fields = exchange.mask(pair for pair in received if pair[0].lower() not in _NOT_ANSWERED)
        exchange.notes["resp_received"] = head_fields(
            self.room, data.http_version, received, status=data.status_code, reason=data.reason
        )
        exchange.upstream_tls(flow.server_conn)
        if exchange.masking:
            data.reason = self.room.redactor.whole(data.reason)
        if data.status_code == 101 and not (exchange.websocket and _is_websocket(response)):
            exchange.refuse(502, Reason.PROTOCOL, "the upstream changes to another protocol")
            return
        length = next((value for name, value in received if name.lower() == b"content-length"), None)
        headless = flow.request.method == "HEAD" or data.status_code == 304
        if not headless and not exchange.answer_fits(int(length) if length is not None and length.isdigit() else None):
            return
        reading = exchange.planned is not None and data.status_code == 200 and not headless
        if exchange.masking or reading:
            coding = b", ".join(value for name, value in fields if name.lower() == b"content-encoding").lower()
            if coding not in _READABLE:
                exchange.refuse(
                    502, UPSTREAM_FAILED, f"the gate cannot read an answer coded as {coding!r}", verdict="error"
                )
                return
            if coding not in (b"", b"identity") and not headless and not reading:
                exchange.decoder = zlib.decompressobj(47 if b"gzip" in coding else 15)
                fields = [pair for pair in fields if pair[0].lower() not in (b"content-encoding", b"content-length")]
                if not flow.request.is_http2 and not any(name.lower() == b"transfer-encoding" for name, _ in fields):
                    fields.append((b"Transfer-Encoding", b"chunked"))
        if fields != list(received):
            exchange.answer = head_fields(
                self.room, data.http_version, fields, status=data.status_code, reason=data.reason
            )
            response.headers = http.Headers(fields)
        else:
            exchange.answer = exchange.notes.pop("resp_received")
        if exchange.planned is not None and headless:
            without_body(response)
        response.stream = not reading
        if "asked" in exchange.heard and speaks_json(response.headers.get("content-type")):
            exchange.heard["answered"] = Overheard()

    def on_answer(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """The answer is whole. Waits only where it is changed."""
        exchange = exchange_of(flow)
        if exchange is None:
            return None
        if flow.response is not None and exchange.planned is not None and flow.response.raw_content:
            return self._changed(exchange, flow.response)
        if flow.websocket is not None:
            self.websocket = exchange
        exchange.finish()
        return None

    @staticmethod
    async def _changed(exchange: Exchange, response: http.Response) -> None:
        await rewrite(exchange, response)
        if exchange.refusal is None:
            exchange.finish()

    def on_error(self, flow: http.HTTPFlow) -> None:
        """It ended before its end."""
        exchange = exchange_of(flow)
        if exchange is not None:
            exchange.finish(error=exchange.told(flow.error.msg if flow.error else "broken off"))

    # Websockets

    def on_websocket_message(self, flow: http.HTTPFlow) -> None:
        """One message; recorded, then forgotten, since mitmproxy would keep them all."""
        exchange, data = exchange_of(flow), flow.websocket
        if exchange is None or data is None:
            return
        message = data.messages[-1]
        self.message[0 if message.from_client else 1] = 0
        if exchange.masking and not message.from_client:
            message.content = self.room.redactor.whole(message.content)
        body = self.room.bodies.put(message.content)
        self.room.tell(
            "ws",
            **self.gate.about,
            of=exchange.seq,
            verdict="allow",
            rule=exchange.decision.rule,
            from_box=message.from_client,
            opcode=message.type.name.lower(),
            **body_fields("body", body),
        )
        data.messages.clear()

    def on_websocket_end(self, flow: http.HTTPFlow) -> None:
        """Closed by either side."""
        data = flow.websocket
        self.end_websocket(close_code=data.close_code if data is not None else None)

    def count_frames(self, size: int, *, from_box: bool) -> bool:
        """Bytes of websocket frames against the rule's limits. False when they are too many."""
        exchange = self.websocket
        if exchange is None:
            return True
        way = 0 if from_box else 1
        self.frames[way] += size
        self.message[way] += size
        decision = exchange.decision
        fits = self.frames[0] <= decision.max_request_bytes and self.frames[1] <= decision.max_response_bytes
        if fits and self.message[way] <= MAX_MESSAGE:
            return True
        self.end_websocket(reason_code=Reason.TOO_LARGE.value, verdict="deny")
        return False

    def end_websocket(self, **fields: Any) -> None:
        """Write the end of the websocket, once."""
        exchange, self.websocket = self.websocket, None
        if exchange is not None:
            counts = {"req_len": self.frames[0], "resp_len": self.frames[1]}
            fields = {"verdict": "allow", "rule": exchange.decision.rule, **counts, **fields}
            self.room.tell("ws-done", **self.gate.about, of=exchange.seq, **fields)

    # Replay

    def find_recorded(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Set the recorded answer to this request, or a refusal."""
        recorded, decision = self.room.recorded, exchange.decision
        assert recorded is not None and decision.host is not None
        scheme, method, query = exchange.key
        path = decision.path + (b"" if query is None else b"?" + query)
        digest = exchange.request_body.sha256 if exchange.request_body is not None else ""
        found = recorded.find(method, scheme, decision.host.text, decision.port, path, digest)
        if found is None:
            exchange.refuse(502, NOT_RECORDED, "the recording has no answer to this request")
            return
        exchange.notes["replayed"] = found.seq
        exchange.recorded = found.chunks()
        exchange.answer = head_fields(self.room, found.version, found.headers, status=found.status, reason=found.reason)
        fields = [(name, value) for name, value in found.headers if name.lower() not in _NOT_ANSWERED]
        if flow.request.is_http2:
            fields = [
                (name, value) for name, value in fields if name.lower() not in (b"transfer-encoding", b"connection")
            ]
        version = b"HTTP/2.0" if flow.request.is_http2 else b"HTTP/1.1"
        fields = [(name.lower(), value) for name, value in fields] if flow.request.is_http2 else fields
        flow.response = http.Response(
            http_version=version,
            status_code=found.status,
            reason=found.reason,
            headers=http.Headers(fields),
            content=None,
            trailers=None,
            timestamp_start=0.0,
            timestamp_end=0.0,
        )

    def next_recorded(self, exchange: Exchange) -> bytes:
        """The next bytes of a recorded body; nothing at its end."""
        chunks: Iterator[bytes] | None = exchange.recorded
        with suppress(StopIteration):
            return next(chunks) if chunks is not None else b""
        return b""


def _one(claims: list[bytes], port: int, scheme: str) -> bytes | None:
    """The one host that all of a request's own names mean; what cannot be one is made malformed by joining them."""
    if len(claims) < 2:
        return claims[0] if claims else None
    usual = 443 if scheme == "https" else 80
    if len({canonical_authority(claim, usual) for claim in claims}) == 1:
        return claims[0]
    return b" ".join(claims)


def _target(asked: Request, decision: Decision, mask: Any) -> dict[str, Any] | None:
    if decision.host is None:
        return None
    query = b"" if asked.query is None else b"?" + asked.query
    path = Wide(mask(decision.path + query))
    return {"scheme": asked.scheme, "host": decision.host.text, "port": decision.port, "path": path}


def _is_websocket(response: http.Response) -> bool:
    return bool(response.headers.get("upgrade", "").lower() == "websocket")
