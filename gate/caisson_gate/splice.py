"""An opaque host: bytes go through as they are. Which host it is was agreed on by DNS and server name before."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from caisson_gate.resolve import AddressDenied

if TYPE_CHECKING:
    from caisson_gate.arrival import Arrival
    from caisson_gate.decide import Decision
    from caisson_gate.served import Served

DIAL_S: Final = 10.0
IDLE_S: Final = 120.0
"""Without a byte either way."""
_CHUNK: Final = 1 << 16


class _TooLarge(Exception):
    pass


class _OtherPhase(Exception):
    pass


class _Flow:
    """How much went which way, and when last. It ends with the phase it began in."""

    def __init__(self, served: Served, limit: int) -> None:
        self.served, self.phase = served, served.phase
        self.sent = self.received = 0
        self.limit = limit
        self.last = time.monotonic()

    def count(self, size: int, outward: bool) -> None:
        self.last = time.monotonic()
        if self.served.phase != self.phase:
            raise _OtherPhase
        if outward:
            self.sent += size
        else:
            self.received += size
            if self.received > self.limit:
                raise _TooLarge


async def splice(
    served: Served,
    arrival: Arrival,
    decision: Decision,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Connect the box with the host it may reach, until either side ends; then an event says how much went through."""
    flow = _Flow(served, decision.max_response_bytes)
    end: dict[str, Any] = {"verdict": "allow"}
    try:
        await _carry(served, arrival, decision, reader, writer, flow, end)
    except AddressDenied as problem:
        end |= {"verdict": "deny", "reason_code": "address_denied", "detail": str(problem)}
        end["upstream_ip"] = problem.address
    except _TooLarge:
        end |= {"verdict": "deny", "reason_code": "too_large"}
    except _OtherPhase:
        end |= {"verdict": "deny", "reason_code": "after_deadline"}
        end["detail"] = f"the connection began in the phase {flow.phase}"
    except (OSError, TimeoutError) as problem:
        end["detail"] = str(problem) or type(problem).__name__
    finally:
        served.journal.append(
            "tcp",
            conn=arrival.conn,
            src_port=arrival.src_port,
            orig_dst=list(arrival.dst),
            name_dns=arrival.name_dns,
            name_sni=arrival.name_sni,
            rule=decision.rule,
            opaque=True,
            req_len=flow.sent,
            resp_len=flow.received,
            **end,
        )


async def _carry(
    served: Served,
    arrival: Arrival,
    decision: Decision,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    flow: _Flow,
    end: dict[str, Any],
) -> None:
    assert decision.host is not None
    target = await served.target(decision.host.text, decision.port)
    end["upstream_ip"] = target.address
    async with asyncio.timeout(DIAL_S):
        answers, outside = await asyncio.open_connection(target.address, target.port)
    try:
        outside.write(arrival.first)
        flow.count(len(arrival.first), True)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, outside, flow, True))
            group.create_task(_pump(answers, writer, flow, False))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    finally:
        outside.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: _Flow, outward: bool) -> None:
    while True:
        try:
            async with asyncio.timeout(IDLE_S):
                data = await reader.read(_CHUNK)
        except TimeoutError:
            if time.monotonic() - flow.last < IDLE_S:
                continue  # the other way something comes
            raise
        if not data:
            break
        flow.count(len(data), outward)
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
