"""Synthetic addresses: one for each name DNS answers, so that an address in the box *is* a name.

That binds SNI, Host and everything that is no HTTP to the name that was asked for, without trusting the client.
"""

from __future__ import annotations

from ipaddress import IPv4Address, ip_network
from typing import Final

NETWORK: Final = ip_network("198.18.0.0/15")
"""Set aside for benchmarks (RFC 2544): no host that anybody means has such an address."""
OWN: Final = str(NETWORK[1])
"""The box's own source address, so that a connection's source never equals its destination."""
_FIRST: Final = 256
MANY: Final = NETWORK.num_addresses - _FIRST - 1


class PoolFull(Exception):
    """More names than addresses."""


class Pool:
    """One box's names. An address is never given to another name while the box lives."""

    def __init__(self) -> None:
        self._by_name: dict[str, str] = {}
        self._by_address: dict[str, str] = {}

    def address(self, name: str) -> str:
        """The name's address, made on first use. PoolFull when none is left."""
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= MANY:
                raise PoolFull(f"more than {MANY} names")
            known = str(IPv4Address(int(NETWORK[_FIRST]) + len(self._by_name)))
            self._by_name[name] = known
            self._by_address[known] = name
        return known

    def name(self, address: str) -> str | None:
        """The name an address stands for, None when it was never given out."""
        return self._by_address.get(address)
