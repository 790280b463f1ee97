"""A connection from a box as the front hands it on: who, whence, whither, and what the first bytes say."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

EXPLICIT_PORT: Final = 3128
"""Where a box finds a proxy when it asks for one (``HTTPS_PROXY``), on any address; nobody has to."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One accepted TCP connection. Attribution is the listener's: a listener lives in one box's namespace only."""

    box: str
    conn: int
    """Counts the connections of one box, from 1."""
    src_port: int
    """In the box; with the witness's connect records it leads to a pid (a hint, never policy)."""
    dst: tuple[str, int]
    """Where the box wanted to go: canonical address text (mapped IPv6 is shown as IPv4) and port."""
    name_dns: str | None
    """The name whose synthetic address ``dst`` is; None for an address the gate never gave out."""
    name_sni: bytes | None
    """Server name of the ClientHello as sent, None without TLS or without the extension."""
    first: bytes
    """What was read while the protocol was found out; not yet consumed by anybody: read it before the stream."""
    tls: bool
    """Whether ``first`` begins a TLS ClientHello."""

    @property
    def explicit(self) -> bool:
        """Whether the box asked for a proxy: then the request names the host, not the address or DNS."""
        return self.dst[1] == EXPLICIT_PORT


def plain_address(text: str) -> str:
    """Canonical text of a socket's address: no scope, and mapped IPv6 as the IPv4 address it means."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)
