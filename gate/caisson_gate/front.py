"""The first to meet a connection: whose it is, where it wants to go, what it begins with, and who deals with it.

HTTP and inspected TLS go to the proxy, opaque hosts are spliced, everything else ends here. The event is written before
anything is done.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from caisson_gate.arrival import Arrival, plain_address
from caisson_gate.decide import Decision, Reason, Request, decide
from caisson_gate.hello import Hello, MalformedHello, looks_like, read_hello
from caisson_gate.pool import OWN
from caisson_gate.splice import splice

if TYPE_CHECKING:
    from caisson_gate.owners import Owners
    from caisson_gate.served import Served

FIRST_S: Final = 10.0
"""How long a connection may keep silent at first; a proxy behind would wait for ever."""
DENIED_FIRST_S: Final = 2.0
"""The same, where it is clear already that nothing will come of it."""
OPAQUE_FIRST_S: Final = 1.0
"""The same, where the other side may be the one that speaks first."""
MOST: Final = 512
"""Connections of one box at once."""
_SHOWN: Final = 64
"""First bytes in an event, of what is neither TLS nor HTTP."""


class Server(Protocol):
    """What speaks HTTP: `caisson_gate.proxy.Proxy`."""

    async def serve(self, arrival: Arrival, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...


class Front:
    """Serves the TCP connections of one box."""

    def __init__(self, served: Served, proxy: Server, owners: Owners | None) -> None:
        self._served = served
        self._proxy = proxy
        self._owners = owners
        self.open = 0
        self.total = 0
        self.turned_away = 0
        """At `MOST`."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from accept to close. Raises nothing but cancellation."""
        self.total += 1
        if self.open >= MOST:
            self.turned_away += 1
            reset(writer)
            return
        self.open += 1
        try:
            async with asyncio.timeout_at(self._served.deadline()):
                await self._serve(reader, writer)
        except TimeoutError:
            self._served.journal.append(
                "connect", **_about(writer), verdict="deny", rule="hard", reason_code=Reason.AFTER_DEADLINE.value
            )
            reset(writer)
        except (OSError, asyncio.IncompleteReadError):
            reset(writer)
        except BaseException:
            reset(writer)  # whatever went wrong: closed
            raise
        finally:
            self.open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = self._served
        about = _about(writer)
        address, port = about["orig_dst"]
        name = served.pool.name(address)
        arrival = Arrival(served.box, next(served.numbers), about["src_port"], (address, port), name, None, b"", False)
        about["conn"] = arrival.conn
        if self._owners is not None:
            peer, here = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            about["inode"] = self._owners.inode(peer[:2], here[:2])
        about["name_dns"] = name
        asked = Request(
            "connect",
            port,
            name_dns=None if name is None else name.encode(),
            # As a CONNECT would name it: an IPv6 address without brackets is no authority.
            name_connect=(f"[{address}]" if ":" in address else address).encode() if name is None else None,
            now=served.age,
            phase=served.phase,
        )
        decision = decide(served.policy, asked)
        proxying = arrival.explicit and address in (OWN, "127.0.0.1", "::1")
        patience = FIRST_S if decision.allowed or proxying else DENIED_FIRST_S
        first, kind = await _begin(reader, OPAQUE_FIRST_S if decision.opaque else patience)
        hello = Hello(None, False)
        if kind == "tls":
            try:
                first, hello = await _hello(reader, first, patience)
            except MalformedHello as problem:
                kind = "other"
                about["detail"] = str(problem)
        arrival = replace(arrival, first=first, tls=kind == "tls", name_sni=hello.sni)
        if kind == "http" and (proxying or not decision.opaque):
            about["name_dns"] = None if proxying else name
            self._tell("connect", about, None, proxying or decision.allowed, decision)
            await self._proxy.serve(arrival, reader, writer)
            return
        if not proxying and kind == "tls":
            asked = replace(asked, kind="tls", name_sni=hello.sni)
        else:  # also HTTP to a host that is not looked into: on the ports of the web that host is TLS or nothing
            asked = replace(asked, kind="tcp")
        decision = decide(served.policy, asked)
        if kind == "tls" and port == 80 and not decision.opaque:
            decision = replace(decision, allowed=False, rule="hard", reason=Reason.PROTOCOL)
        shown = first if kind == "other" else b""
        self._tell("tls" if kind == "tls" else "tcp", about, hello, decision.allowed, decision, shown)
        if not decision.allowed:
            reset(writer)
        elif decision.opaque:
            await splice(served, arrival, decision, reader, writer)
        elif kind == "tls":
            await self._proxy.serve(arrival, reader, writer)
        else:
            reset(writer)

    def _tell(
        self,
        kind: str,
        about: dict[str, Any],
        hello: Hello | None,
        allowed: bool,
        decision: Decision,
        first: bytes = b"",
    ) -> None:
        verdict = ("report" if decision.reported else "allow") if allowed else "deny"
        self._served.journal.append(
            kind,  # type: ignore[arg-type]
            **{"detail": decision.detail or None, **about},
            name_sni=hello.sni if hello else None,
            ech=True if hello and hello.ech else None,
            first=first[:_SHOWN] or None,
            verdict=verdict,
            rule=decision.rule,
            reason_code=decision.reason.value if decision.reason and not (allowed and verdict == "allow") else None,
            opaque=True if allowed and decision.opaque else None,
        )


def _about(writer: asyncio.StreamWriter) -> dict[str, Any]:
    address, port = writer.get_extra_info("sockname")[:2]
    return {"src_port": writer.get_extra_info("peername")[1], "orig_dst": [plain_address(address), port]}


async def _begin(reader: asyncio.StreamReader, patience: float) -> tuple[bytes, str]:
    """The first bytes, as many as it takes to say what they are; silence is ``other``."""
    first = b""
    try:
        async with asyncio.timeout(patience):
            while (kind := looks_like(first)) is None:
                more = await reader.read(1 << 16)
                if not more:
                    break
                first += more
    except TimeoutError:
        return first, "other"
    return first, kind if kind in ("tls", "http") else "other"


async def _hello(reader: asyncio.StreamReader, first: bytes, patience: float) -> tuple[bytes, Hello]:
    """The whole ClientHello. MalformedHello when it does not come."""
    try:
        async with asyncio.timeout(patience):
            while (hello := read_hello(first)) is None:
                more = await reader.read(1 << 16)
                if not more:
                    raise MalformedHello("the connection ended within its ClientHello")
                first += more
    except TimeoutError:
        raise MalformedHello("the ClientHello did not come in time") from None
    return first, hello


def reset(writer: asyncio.StreamWriter) -> None:
    """Close at once and so that the other side knows it was refused."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    try:
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    writer.transport.abort()
