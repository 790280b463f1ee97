"""One request and its answer: what was decided, what passed, and how it ended. Knows nothing of any proxy's classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from caisson_gate.bodies import Body
from caisson_gate.decide import Reason
from caisson_gate.events import MAX_LIST, MAX_WIDE, Ready, bounded
from caisson_gate.hosted import Overheard
from caisson_gate.refusal import Refusal

if TYPE_CHECKING:
    from caisson_gate.answers import Planned
    from caisson_gate.bodies import Recording
    from caisson_gate.credentials import RedactingStream
    from caisson_gate.decide import Decision
    from caisson_gate.proxy_room import Room

MAX_DECODED: Final = 16 << 20
"""What one chunk may unpack to; more than that is no honest answer."""
Pairs = Iterable[tuple[bytes, bytes]]

_PLACEHOLDER: Final = re.compile(rb"(?:[A-Za-z]+ )?caisson-placeholder-[A-Za-z0-9_]+")
_SECRET_HEADERS: Final = re.compile(
    rb"(?i)(?:proxy-)?authorization|x-api-key|api-key|x-goog-api-key|x-auth-token|x-amz-security-token|private-token"
)


class Exchange:
    """From the request's head to the last byte of the answer. Its decision is in the journal before it exists."""

    def __init__(
        self, room: Room, seq: int, decision: Decision, about: dict[str, Any], done: Callable[[Exchange], object]
    ) -> None:
        self.room = room
        self.seq = seq
        self.decision = decision
        self.about = about
        """Names the connection in later events: conn, src_port."""
        self.refusal: Refusal | None = None
        """To be sent in place of an answer; set by whoever finds that it must not go on."""
        self.ended = False
        self.sent: Recording | None = None
        """The request's body, while it passes."""
        self.received: Recording | None = None
        """The answer's body, while it passes."""
        self.request_body: Body | None = None
        self.as_received: Body | None = None
        """The answer as it came, where the gate changed it."""
        self.answer: dict[str, Any] | None = None
        self.upstream: str | None = None
        self.notes: dict[str, Any] = {}
        """More for the event of the end."""
        self.key: tuple[str, bytes, bytes | None] = ("", b"", None)
        """Scheme, method and query, for replay."""
        self.recorded: Iterator[bytes] | None = None
        """The body of a recorded answer, while it is served."""
        self.websocket = False
        """Whether the box asked for one."""
        self.decoder: Any = None
        """Of an answer that has to be read though it came compressed."""
        self.planned: Planned | None = None
        """Set for an answer that the gate has to read whole and change."""
        self.heard: dict[str, Overheard] = {}
        """Bodies that are looked at as they pass: ``asked`` and ``answered``."""
        self._done = done
        self._request_left = decision.max_request_bytes
        self._answer_left = decision.max_response_bytes
        self._mask: RedactingStream | None = room.redactor.stream() if decision.inject is not None else None

    def take_request(self, chunk: bytes) -> bool:
        """Bytes of the request's body on their way out. False when they are more than the rule allows."""
        self._request_left -= len(chunk)
        if self._request_left < 0:
            self.refuse(413, Reason.TOO_LARGE, f"the request holds more than {self.decision.max_request_bytes} bytes")
            return False
        if self.sent is None:
            self.sent = self.room.bodies.start()
        self.sent.write(chunk)
        if "asked" in self.heard:
            self.heard["asked"].feed(chunk)
        return True

    def end_request(self) -> None:
        """The request's body is whole."""
        if self.sent is not None:
            self.request_body = self.sent.finish()
            self.sent = None

    def answer_fits(self, length: int | None) -> bool:
        """Whether an answer of the declared length may come in."""
        if length is None or length <= self._answer_left:
            return True
        self.refuse(502, Reason.TOO_LARGE, f"the answer holds more than {self.decision.max_response_bytes} bytes")
        return False

    def take_answer(self, chunk: bytes) -> bytes | None:
        """Bytes of the answer's body: what the box may have of them now. None when they are too many."""
        self._answer_left -= len(chunk)
        if self.decoder is not None and chunk:
            chunk = self._decode(chunk)
            self._answer_left -= len(chunk)
        if self._answer_left < 0:
            self.notes["reason_code"] = Reason.TOO_LARGE.value
            self.notes["detail"] = f"the answer holds more than {self.decision.max_response_bytes} bytes; cut off"
            return None
        if self._mask is not None:
            chunk = self._mask.feed(chunk)
        if chunk:
            if self.received is None:
                self.received = self.room.bodies.start()
            self.received.write(chunk)
            if "answered" in self.heard:
                self.heard["answered"].feed(chunk)
        return chunk

    def _decode(self, chunk: bytes) -> bytes:
        made: bytes = self.decoder.decompress(chunk, max(1, min(self._answer_left + 1, MAX_DECODED)))
        if self.decoder.unconsumed_tail:
            self._answer_left = -1
        return made

    def end_answer(self) -> bytes:
        """The answer's body is whole: what was held back of it."""
        rest = b""
        if self._mask is not None:
            rest = self._mask.finish()
            self.notes["resp_masked"] = True if self._mask.changed else None
        if rest:
            if self.received is None:
                self.received = self.room.bodies.start()
            self.received.write(rest)
        return rest

    def serve(self, body: bytes) -> None:
        """A whole answer that the gate made itself."""
        self.received = self.room.bodies.start()
        self.received.write(body)

    def upstream_tls(self, server: Any) -> None:
        """Note how the upstream was reached."""
        if server.tls_version is not None:
            self.notes["upstream_tls"] = {"version": server.tls_version, "alpn": server.alpn}

    @property
    def masking(self) -> bool:
        """Whether this upstream was given a credential, which must not come back to the box."""
        return self._mask is not None

    def mask(self, pairs: Pairs) -> list[tuple[bytes, bytes]]:
        """Headers of an answer as the box may see them."""
        return self.room.redactor.pairs(pairs) if self._mask is not None else list(pairs)

    def told(self, message: str) -> str:
        """An error of the layers for the box and the record. They quote what came, so a credential could be in it."""
        return "the upstream answered what is no HTTP, or broke off" if self.masking else message[:500]

    def refuse(self, status: int, reason: str, detail: str, *, verdict: str = "deny") -> None:
        """Have the gate answer instead."""
        self.refusal = Refusal(status, self.decision.rule, str(reason), detail, verdict)

    def finish(self, *, error: str | None = None) -> None:
        """Write how it ended. Only the first call counts."""
        if self.ended:
            return
        self.ended = True
        self._done(self)
        tools = [
            {"in": where, "kind": tool.kind, "name": tool.name, "where": tool.where}
            for where, heard in self.heard.items()
            for tool in heard.tools()
        ]
        if tools:
            self.notes["hosted_tools"] = tools
        whole = error is None
        if self.sent is not None:
            self.request_body = self.sent.finish(whole=False)
            self.sent = None
        answered = self.received.finish(whole=whole) if self.received is not None else None
        self.received = None
        refusal, notes = self.refusal, self.notes
        verdict = "deny" if refusal is not None or "reason_code" in notes else "allow"
        fields: dict[str, Any] = {
            "of": self.seq,
            "verdict": verdict,
            "rule": self.decision.rule,
            "error": error,
            "upstream_ip": self.upstream,
            "resp": self.answer,
            **self.about,
            **body_fields("req", self.request_body),
            **body_fields("resp", answered),
            **body_fields("resp_received", self.as_received),
        }
        if refusal is not None:
            fields.update(status=refusal.status, reason_code=refusal.reason, detail=refusal.detail)
        elif self.answer is not None:
            fields["status"] = self.answer["status"]
        self.room.tell("http-done", **{**fields, **notes})

    def drop(self) -> None:
        """Forget what passed; for an exchange that became something else."""
        for recording in (self.sent, self.received):
            if recording is not None:
                recording.drop()
        self.sent = self.received = None


def body_fields(name: str, body: Body | None) -> dict[str, Any]:
    """A body's part of an event."""
    if body is None:
        return {}
    return {
        f"{name}_sha256": body.sha256,
        f"{name}_len": body.length,
        f"{name}_kept": body.kept or None,
        f"{name}_redacted": body.redacted or None,
        f"{name}_cut": None if body.whole else True,
    }


def head_fields(room: Room, version: bytes, pairs: Pairs, **more: Any) -> Ready:
    """A head's part of an event. Values that authorise somebody are not for a bundle: name and length are."""
    shown: list[Any] = []
    redact = room.redactor.whole if room.redactor else None
    for name, value in pairs:
        if redact is not None:
            name, value = redact(name), redact(value)
        if _authorises(name) and not _PLACEHOLDER.fullmatch(value):
            value = b"[masked, %d bytes]" % len(value)
        shown.append([bounded(name), bounded(value, MAX_WIDE)])
    if len(shown) > MAX_LIST:
        shown[MAX_LIST:] = [{"left_out": len(shown) - MAX_LIST}]
    made = Ready(version=bounded(version), headers=shown)
    for key, extra in more.items():
        made[key] = bounded(room.redactor.whole(extra)) if isinstance(extra, bytes) else extra
    return made


@lru_cache(maxsize=4096)
def _authorises(name: bytes) -> bool:
    return _SECRET_HEADERS.fullmatch(name) is not None
