"""From a name to the address that is dialled. Only the gate resolves, and it dials what it checked.

Every address a look-up brings is judged; one bad address refuses the name, because which of several a client would take
is not ours to guess. What the person who runs it pinned with ``--resolve`` is dialled as it stands.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Name and port to addresses; OSError when there are none."""

Judge = Callable[[str], str | None]
"""Why an address may not be dialled, None when it may; the box's policy (`served.Served.judge`)."""

KEEP_S: Final = 60.0
"""How long an answer is used: a name that changes its address between two look-ups gains nothing within it."""
_MANY: Final = 4096


class AddressDenied(Exception):
    """A name leads, by at least one address, to where no box may go."""

    def __init__(self, name: str, address: str, why: str) -> None:
        super().__init__(f"{name} leads to {address}: {why}")
        self.name, self.address, self.why = name, address, why


@dataclass(frozen=True, slots=True)
class Target:
    """What to dial."""

    address: str
    port: int
    pinned: bool
    """By ``--resolve``: not judged by class."""


def parse_pin(text: str) -> tuple[str, str, int | None]:
    """``NAME=ADDR``, ``NAME=ADDR:PORT``, ``NAME=[V6]:PORT``. ValueError with the reason."""
    name, equals, where = text.partition("=")
    if not name or not equals or not where:
        raise ValueError(f"{text!r} is not NAME=ADDRESS[:PORT]")
    port: int | None = None
    if where.startswith("["):
        address, _, rest = where[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise ValueError(f"{text!r} is not NAME=[ADDRESS]:PORT")
        tail = rest[1:]
    elif where.count(":") == 1:
        address, _, tail = where.partition(":")
    else:
        address, tail = where, ""
    if tail:
        if not tail.isascii() or not tail.isdigit() or not 0 < int(tail) < 65536:
            raise ValueError(f"{text!r}: {tail!r} is no port")
        port = int(tail)
    try:
        return name.rstrip(".").lower(), str(ip_address(address)), port
    except ValueError:
        raise ValueError(f"{text!r}: {address!r} is no address") from None


async def system_lookup(name: str, port: int) -> Sequence[str]:
    """The host's own resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in found))


class Resolver:
    """Shared by every box of a gate; answers are kept for `KEEP_S`."""

    def __init__(self, pins: Mapping[str, tuple[str, int | None]], lookup: Lookup = system_lookup) -> None:
        """``pins`` as `parse_pin` reads them; a pinned address literal stands for itself."""
        self._pins = dict(pins)
        self._lookup = lookup
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def resolve(self, name: str, port: int, judge: Judge) -> Target:
        """Where to go for a canonical name or address literal. AddressDenied, or OSError when there is nowhere."""
        pin = self._pins.get(name)
        if pin is not None:
            return Target(pin[0], pin[1] or port, True)
        addresses = await self._addresses(name, port)
        for address in addresses:
            if (why := judge(address)) is not None:
                raise AddressDenied(name, address, why)
        return Target(addresses[0], port, False)

    async def _addresses(self, name: str, port: int) -> tuple[str, ...]:
        known = self._known.get(name)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        addresses = tuple(await self._lookup(name, port))
        if not addresses:
            raise OSError(f"{name} has no address")
        if len(self._known) >= _MANY:
            self._known.clear()
        self._known[name] = (time.monotonic() + KEEP_S, addresses)
        return addresses
