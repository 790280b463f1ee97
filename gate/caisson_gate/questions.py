"""The resolver a box talks to, whatever server's address it asks: over datagrams and over streams."""

from __future__ import annotations

import asyncio
import socket
import time
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final

from caisson_gate import dns
from caisson_gate.arrival import plain_address
from caisson_gate.decide import Reason, Request, decide
from caisson_gate.pool import PoolFull
from caisson_gate.share import SLICE_S
from caisson_gate.tally import Tally

if TYPE_CHECKING:
    from caisson_gate.served import Served

_KEYS: Final = 4096
"""Different questions that get an event of their own."""
_STREAM_S: Final = 10.0
"""A stream that asks nothing for so long is closed."""
_IP_PKTINFO, _IPV6_PKTINFO = 8, 50
_ROOM: Final = socket.CMSG_SPACE(20) + socket.CMSG_SPACE(12)


class Questions:
    """Answers one box's questions and records them: the first of each kind as an event, repeats by count."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._tally = Tally[tuple[str, bytes, int, str]](_KEYS)
        self._malformed = Tally[bytes](256)

    def answer(self, packet: bytes, over: str, server: tuple[str, int], src_port: int) -> bytes | None:
        """The reply to one packet; None for none. The event is written before."""
        about: dict[str, Any] = {"over": over, "orig_dst": list(server), "src_port": src_port}
        try:
            question = dns.read(packet)
        except dns.Malformed as problem:
            if self._malformed.seen(packet[2:300]):
                self._served.journal.append(
                    "dns",
                    **about,
                    verdict="deny",
                    rule="hard",
                    reason_code=Reason.DNS_MALFORMED.value,
                    detail=str(problem),
                    packet_hex=packet[:300].hex(),
                    length=len(packet),
                )
            return None if problem.id is None else dns.refuse(problem.id)
        return self._decided(question, about)

    def _decided(self, question: dns.Question, about: dict[str, Any]) -> bytes:
        served = self._served
        asked = question.name.encode()
        decision = decide(served.policy, Request("dns", 53, name_dns=asked, now=served.age, phase=served.phase))
        try:
            address = served.pool.address(question.name) if decision.allowed else None
        except PoolFull:
            address = None
        answer = dns.answer(question, None if address is None else lambda: address)
        verdict = ("report" if decision.reported else "allow") if decision.allowed else "deny"
        if self._tally.seen((verdict, asked, question.kind, about["orig_dst"][0])):
            served.journal.append(
                "dns",
                **about,
                name_dns=question.raw,
                qtype=question.kind_name,
                answer=answer.said,
                verdict=verdict,
                rule=decision.rule,
                reason_code=decision.reason.value if decision.reason else None,
                detail=decision.detail or None,
            )
        return answer.reply

    def close(self) -> dict[str, Any]:
        """How much was asked, for the box's last event."""
        return {
            "questions": self._tally.total,
            "malformed": self._malformed.total,
            "not_told_apart": self._tally.beyond + self._malformed.beyond,
            "repeated": [
                {
                    "name_dns": name.decode(),
                    "qtype": dns.kind_name(kind),
                    "server": server,
                    "verdict": verdict,
                    "count": count,
                }
                for (verdict, name, kind, server), count in sorted(self._tally.repeated(), key=lambda one: -one[1])[
                    :100
                ]
            ],
        }


class Datagrams:
    """Port 53/udp of one box. An answer leaves from the address that was asked."""

    def __init__(self, sock: socket.socket, questions: Questions) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._questions = questions
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        until = time.monotonic() + SLICE_S
        while time.monotonic() < until:
            try:
                packet, ancillary, _, peer = self._socket.recvmsg(dns.MAX_QUERY + 1, _ROOM)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an error of an earlier answer (its asker is gone)
            server, way = _asked(ancillary)
            try:
                reply = self._questions.answer(packet, "udp", (server, 53), peer[1])
            except (OSError, ValueError):
                continue  # the journal is full or closed: what cannot be told is not answered
            if reply is not None:
                try:
                    self._socket.sendmsg([reply], way, 0, peer)
                except OSError:
                    pass  # its buffer is full, or it is gone: it asks again, or not

    def close(self) -> None:
        """Stop answering. The socket stays the caller's."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())


def _asked(ancillary: list[tuple[int, int, bytes]]) -> tuple[str, list[tuple[int, int, bytes]]]:
    """The address a datagram was sent to, and what makes the answer come from there."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
            return plain_address(str(IPv6Address(data[:16]))), [(level, kind, data[:16] + b"\0" * 4)]
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            return socket.inet_ntoa(data[8:12]), [(level, kind, b"\0" * 4 + data[8:12] + b"\0" * 4)]
    return "", []


async def stream(
    questions: Questions,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server: tuple[str, int],
    src_port: int,
) -> None:
    """Port 53/tcp: questions one after the other, each behind its length."""
    try:
        while True:
            async with asyncio.timeout(_STREAM_S):
                size = int.from_bytes(await reader.readexactly(2))
                packet = await reader.readexactly(size)
            reply = questions.answer(packet, "tcp", server, src_port)
            if reply is None:
                return
            writer.write(len(reply).to_bytes(2) + reply)
            await writer.drain()
    except (asyncio.IncompleteReadError, TimeoutError, OSError, ValueError):
        return
