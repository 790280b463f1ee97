"""Answers that the gate reads whole and changes before the box gets them: package indexes under a time cut-off.

What came and what was served are both kept, so a reader of the bundle sees what the box did not.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mitmproxy import http

from caisson_gate.answers import DROPPED_HEADERS, Plan, Planned
from caisson_gate.decide import Decision, Reason
from caisson_gate.indexes import MAX_PAGE, Undated

if TYPE_CHECKING:
    from caisson_gate.exchange import Exchange
    from caisson_gate.proxy_room import Room

IN_THREAD: Final = 256 << 10
"""Pages from this size on are worked on beside the loop, which serves other boxes meanwhile."""
_OF_THE_OLD_BODY: Final = frozenset(
    {"content-length", "content-encoding", "content-md5", "digest", "etag", "last-modified", "x-pypi-last-serial"}
)


def planned(room: Room, decision: Decision, accept: bytes | None) -> tuple[Decision, Planned | None]:
    """What the cut-off makes of an allowed request: a refusal, or a plan to read its answer; None to leave it alone."""
    policy = room.served.policy
    if room.cutoff is None:
        return decision, None
    plan = room.cutoff.plan(decision, accept)
    if plan.plan is Plan.REFUSE:
        let_through = policy.action == "report"
        status = 200 if let_through else policy.deny_status
        decision = replace(
            decision,
            allowed=let_through,
            reported=let_through,
            reason=Reason.UNDATED,
            detail=plan.detail,
            status=status,
        )
    reading = plan.plan is Plan.READ and policy.action == "enforce"
    return decision, plan if reading else None


def prepare(exchange: Exchange, request: http.Request) -> None:
    """Ask for an answer that can be read: whole, now, uncompressed, and in the form that carries dates."""
    plan = exchange.planned
    if plan is None:
        return
    fields = [pair for pair in request.headers.fields if pair[0].lower() not in DROPPED_HEADERS]
    if plan.accept is not None:
        fields = [pair for pair in fields if pair[0].lower() != b"accept"] + [(b"accept", plan.accept)]
    request.headers = http.Headers(fields)


async def rewrite(exchange: Exchange, response: http.Response) -> None:
    """Put what may be served in place of what came; or leave a refusal with the exchange."""
    plan, room = exchange.planned, exchange.room
    body = response.raw_content or b""
    exchange.as_received = room.bodies.put(body)
    assert plan is not None and room.cutoff is not None
    coding = response.headers.get("content-encoding", "").lower()
    scheme = exchange.key[0]
    try:
        plain = unpack(coding, body)
        if len(plain) < IN_THREAD:
            page = room.cutoff.answer(exchange.decision, plan, scheme, plain)
        else:
            page = await asyncio.to_thread(room.cutoff.answer, exchange.decision, plan, scheme, plain)
    except (Undated, zlib.error) as problem:
        exchange.refuse(room.served.policy.deny_status, Reason.UNDATED, str(problem))
        return
    exchange.notes["cutoff"] = {"kept": page.kept, "removed": page.removed}
    without_body(response)
    if page.content_type:
        response.headers["content-type"] = page.content_type
    response.headers["content-length"] = str(len(page.body))
    response.headers.pop("transfer-encoding", None)
    response.raw_content = page.body
    exchange.serve(page.body)


def without_body(response: http.Response) -> None:
    """Take away the headers that describe the body as it came."""
    for name in _OF_THE_OLD_BODY:
        response.headers.pop(name, None)


def unpack(coding: str, body: bytes) -> bytes:
    """The body without its content coding; zlib.error when it is damaged or unfolds too far."""
    if coding in ("", "identity"):
        return body
    unfold = zlib.decompressobj(47 if "gzip" in coding else 15)
    plain = unfold.decompress(body, MAX_PAGE)
    if unfold.unconsumed_tail or not unfold.eof:
        raise zlib.error("this page is not whole, or too large to be read")
    return plain
