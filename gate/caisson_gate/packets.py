"""Everything a box sends to anywhere, from its own loopback: what no listener answers is known from here alone.

The filter on the socket (made with it, in the box) lets through first packets of TCP and all else that is not for the
loopback addresses. The first of a kind becomes an event, repeats are counted, and so is what the kernel had to drop.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, Final, Literal

from caisson_gate.decide import Reason
from caisson_gate.share import SLICE_S
from caisson_gate.tally import Tally

if TYPE_CHECKING:
    from caisson_gate.served import Served

_KEYS: Final = 4096
REST_S: Final = 0.5
"""At the end, for what is still to be read; what is beyond it counts as dropped."""
_SHOWN: Final = 96
"""Bytes of a payload in an event."""
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_IP, _IPV6 = 0x0800, 0x86DD
_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58
_EXTENSIONS: Final = frozenset({0, 43, 60, 135})
_FRAGMENT: Final = 44
_NAMES: Final = {1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 33: "dccp", 41: "ipv6", 47: "gre", 50: "esp",
                 58: "icmpv6", 132: "sctp", 136: "udplite"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet, as far as it matters. Ports are 0 where the protocol has none."""

    kind: Literal["tcp", "udp", "icmp", "packet"]
    protocol: str
    source: str
    target: str
    src_port: int
    port: int
    payload: bytes
    length: int
    """Of the payload on the wire."""
    label: str = ""


def read(ethertype: int, data: bytes) -> Packet:
    """What a packet is, from its network header on. Whatever does not fit is a ``packet`` of its own kind."""
    try:
        if ethertype == _IP:
            return _read_four(data)
        if ethertype == _IPV6:
            return _read_six(data)
    except (struct.error, IndexError, ValueError):
        pass
    return Packet("packet", f"ethertype {ethertype:#06x}", "", "", 0, 0, data, len(data))


def _read_four(data: bytes) -> Packet:
    head = (data[0] & 15) * 4
    whole, fragment = struct.unpack_from("!H", data, 2)[0], struct.unpack_from("!H", data, 6)[0] & 0x1FFF
    source, target = str(IPv4Address(data[12:16])), str(IPv4Address(data[16:20]))
    return _read_inner(data[9], source, target, data[head:], max(whole - head, 0), bool(fragment))


def _read_six(data: bytes) -> Packet:
    source, target = str(IPv6Address(data[8:24])), str(IPv6Address(data[24:40]))
    left, following, at, fragment = struct.unpack_from("!H", data, 4)[0], data[6], 40, False
    while following in _EXTENSIONS or following == _FRAGMENT:
        size = 8 if following == _FRAGMENT else (data[at + 1] + 1) * 8
        if following == _FRAGMENT:
            fragment = bool(struct.unpack_from("!H", data, at + 2)[0] & 0xFFF8)
        following, at = data[at], at + size
    return _read_inner(following, source, target, data[at:], max(left - (at - 40), 0), fragment)


def _read_inner(number: int, source: str, target: str, data: bytes, length: int, fragment: bool) -> Packet:
    name = _NAMES.get(number, f"protocol {number}")
    if fragment:
        return Packet("packet", name, source, target, 0, 0, data, length, "fragment")
    if number == _TCP:
        src_port, port = struct.unpack_from("!HH", data)
        head = (data[12] >> 4) * 4
        return Packet("tcp", name, source, target, src_port, port, data[head:], max(length - head, 0))
    if number in (_UDP, 136):
        src_port, port = struct.unpack_from("!HH", data)
        payload = data[8:]
        return Packet("udp", name, source, target, src_port, port, payload, max(length - 8, 0), _label(port, payload))
    if number in (_ICMP, _ICMP6):
        return Packet("icmp", name, source, target, 0, 0, data[8:], max(length - 8, 0), f"type {data[0]}")
    return Packet("packet", name, source, target, 0, 0, data, length)


def _label(port: int, payload: bytes) -> str:
    """What a datagram seems to be, for a reader; decides nothing."""
    if len(payload) >= 7 and payload[0] & 0xC0 == 0xC0 and payload[1:5] != b"\0\0\0\0":
        return "QUIC"
    return {5353: "mDNS", 5355: "LLMNR", 137: "NetBIOS", 123: "NTP", 853: "DNS over QUIC"}.get(port, "")


class Recorder:
    """Reads the packet socket of one box."""

    def __init__(self, sock: socket.socket, served: Served, listening: Collection[int]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._served = served
        self._listening = frozenset(listening)
        self._tally = Tally[tuple[str, str, str, int]](_KEYS)
        self._answered = self._untold = 0
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    def _readable(self, most_s: float = SLICE_S) -> None:
        until = time.monotonic() + most_s
        while time.monotonic() < until:
            try:
                data, address = self._socket.recvfrom(4096)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # the interface went down and up: there is more to come, or nothing
            try:
                self._record(read(address[1], data))
            except (OSError, ValueError):
                self._untold += 1  # the journal is full

    def _record(self, packet: Packet) -> None:
        if (packet.kind == "tcp" and packet.port in self._listening) or (packet.kind == "udp" and packet.port == 53):
            self._answered += 1  # whoever answers it tells it
            return
        if not self._tally.seen((packet.protocol, packet.label, packet.target, packet.port)):
            return
        carried = packet.kind in ("tcp", "udp")
        self._served.journal.append(
            packet.kind,
            protocol=packet.protocol,
            label=packet.label or None,
            src_port=packet.src_port or None,
            orig_dst=[packet.target, packet.port] if carried else [packet.target],
            name_dns=self._served.pool.name(packet.target),
            verdict="deny",
            rule="default",
            reason_code=(Reason.PORT_NOT_ALLOWED if packet.kind == "tcp" else Reason.PROTOCOL).value,
            blocked_by="no listener",
            payload_hex=packet.payload[:_SHOWN].hex() or None,
            payload_sha256=hashlib.sha256(packet.payload).hexdigest() if packet.payload else None,
            length=packet.length,
        )

    def close(self) -> dict[str, Any]:
        """Read what is left and stop; how much there was, for the box's last event. The socket stays the caller's."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._readable(REST_S)
        try:
            seen, dropped = struct.unpack("II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        except OSError:
            seen = dropped = 0
        most = sorted(self._tally.repeated(), key=lambda one: -one[1])[:200]
        return {
            "seen": seen,
            "dropped": dropped,
            "untold": self._untold,
            "answered_elsewhere": self._answered,
            "told": self._tally.total,
            "not_told_apart": self._tally.beyond,
            "repeated": [
                {"protocol": protocol, "label": label or None, "orig_dst": [target, port], "count": count}
                for (protocol, label, target, port), count in most
            ],
        }
