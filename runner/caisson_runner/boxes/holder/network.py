"""A box's network as the gate needs it: every address leads to `lo`, and the sockets that answer are made inside.

Runs in a short-lived child that joined the box's user and network namespace and nothing else of it. What is made here
goes out as descriptors; nothing stays in the box but routes, one address and closed doors. The kernel is spoken to by
netlink directly: a library would take longer to import than this takes to run.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

OWN: Final = "198.18.0.1"
"""The box's own source address (see `caisson_gate.pool`): with the loopback's alone a connection's source would equal
its destination, and programs that ask for an address to come from would think there is no network."""
BACKLOG: Final = 1024
SNAP: Final = 2048
"""Bytes of a packet the recorder gets."""
_RECEIVE_BUFFER: Final = 4 << 20
"""As much as net.core.rmem_max lets it be."""

_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 20, 24
_NLM_REQUEST, _NLM_ACK, _NLM_REPLACE, _NLM_CREATE = 1, 4, 0x100, 0x400
_LO: Final = 1
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_RTA_OIF, _RTA_PREFSRC, _IFA_ADDRESS, _IFA_LOCAL = 4, 7, 1, 2
_EEXIST: Final = 17
_NETLINK_SOCK_DIAG: Final = 4
_SO_ATTACH_FILTER: Final = 26
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78
_ETH_P_ALL: Final = 3

Made = Iterator[tuple[dict[str, object], socket.socket]]


class NetworkRefused(Exception):
    """A step the kernel refused: (stage, OSError)."""

    def __init__(self, stage: str, problem: OSError) -> None:
        super().__init__(f"{stage}: {problem.strerror}")
        self.number = problem.errno or 0


def make(ports: Sequence[int]) -> Made:
    """Routes first, then every socket with what it is. NetworkRefused at the first step that fails: never half open."""
    six = _has_ipv6()
    _step("routes", _route_everything_here, six)
    _silence(six)
    # The recorder first, so that it sees whatever the other sockets answer.
    yield {"what": "packets"}, _step("packet recorder", _packets)
    yield {"what": "diag"}, _step("socket table", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    yield {"what": "dns", "port": 53}, _step("port 53/udp", _datagrams, 53, six)
    for port in ports:
        yield {"what": "tcp", "port": port}, _step(f"port {port}/tcp", _listener, port, six)


def _step(stage: str, action: object, *arguments: object) -> socket.socket:
    try:
        return action(*arguments)  # type: ignore[operator,no-any-return]
    except OSError as problem:
        raise NetworkRefused(stage, problem) from problem


def _has_ipv6() -> bool:
    try:
        with open("/proc/sys/net/ipv6/conf/lo/disable_ipv6") as switch:
            off = switch.read().strip() != "0"
        if off:  # a container's loopback may have it off
            with open("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "w") as switch:
                switch.write("0\n")
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    except OSError:
        return False  # this kernel has none, so neither has the box
    return True


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("HH", size, kind) + value + b"\0" * (-size % 4)


def _route_everything_here(six: bool) -> None:
    own, lo = socket.inet_aton(OWN), struct.pack("i", _LO)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        up = struct.pack("BxHiII", socket.AF_UNSPEC, 0, _LO, 1, 1)
        _tell(netlink, _RTM_NEWLINK, 0, up)
        address = struct.pack("BBBBi", socket.AF_INET, 32, 0, _SCOPE_HOST, _LO)
        address += _attribute(_IFA_LOCAL, own) + _attribute(_IFA_ADDRESS, own)
        _tell(netlink, _RTM_NEWADDR, _NLM_CREATE | _NLM_REPLACE, address)
        route = _attribute(_RTA_OIF, lo)
        for family, more in ((socket.AF_INET, _attribute(_RTA_PREFSRC, own)), (socket.AF_INET6, b""))[: 1 + six]:
            head = struct.pack("BBBBBBBBI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, 0)
            _tell(netlink, _RTM_NEWROUTE, _NLM_CREATE | _NLM_REPLACE, head + route + more)


def _tell(netlink: socket.socket, kind: int, flags: int, body: bytes) -> None:
    """One request and its acknowledgement. OSError with the kernel's number."""
    flags |= _NLM_REQUEST | _NLM_ACK
    netlink.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    number = -int(struct.unpack_from("i", netlink.recv(4096), 16)[0])
    if number not in (0, _EEXIST):
        raise OSError(number, os.strerror(number))


def _silence(six: bool) -> None:
    """The box's kernel would answer an echo from any address: say nothing instead. Refused, it misleads, no more."""
    for path in ("ipv4/icmp_echo_ignore_all", *(("ipv6/icmp/echo_ignore_all",) if six else ())):
        try:
            with open(f"/proc/sys/net/{path}", "w") as switch:
                switch.write("1\n")
        except OSError:
            pass


def _listener(port: int, six: bool) -> socket.socket:
    """On every address of both families. No reuse flags: with them the box could bind the same port beside us."""
    made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    if six:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::" if six else "0.0.0.0", port))  # noqa: S104 - of the box
    made.listen(BACKLOG)
    return made


def _datagrams(port: int, six: bool) -> socket.socket:
    """With the asked address beside each datagram, so that the answer comes from there."""
    made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
    if six:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)  # else only assigned addresses may answer
    else:
        made.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    made.bind(("::" if six else "0.0.0.0", port))  # noqa: S104 - of the box
    return made


def _packets() -> socket.socket:
    """What is sent to anywhere but the loopback addresses: first packets of TCP, everything else whole.

    The filter is there before the socket hears anything.
    """
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    program = b"".join(struct.pack("HBBI", *line) for line in assemble(FILTER))
    # The kernel reads the program while the call lasts; ctypes keeps it in place.
    import ctypes

    held = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    made.bind(("lo", _ETH_P_ALL))
    return made


_LD, _LDH, _LDB, _LDX_LEN, _LDH_X, _LDB_X = 0x20, 0x28, 0x30, 0xB1, 0x48, 0x50
_AND, _JEQ, _JSET, _RET = 0x54, 0x15, 0x45, 0x06
_KIND, _PROTOCOL = 0xFFFFF004, 0xFFFFF000
Line = tuple[str, int, int, str, str]
FILTER: Final[tuple[Line, ...]] = (
    # label, code, k, jump if true, jump if false ("" is the next line)
    ("", _LD, _KIND, "", ""),
    ("", _JEQ, 4, "drop", ""),  # the copy on its way out
    ("", _LD, _PROTOCOL, "", ""),
    ("", _JEQ, 0x0800, "", "six?"),
    ("", _LD, 16, "", ""),
    ("", _JEQ, struct.unpack("!I", socket.inet_aton(OWN))[0], "drop", ""),  # an answer
    ("", _AND, 0xFF000000, "", ""),
    ("", _JEQ, 0x7F000000, "drop", ""),
    ("", _LDH, 6, "", ""),
    ("", _JSET, 0x1FFF, "keep", ""),  # a later fragment has no header to look at
    ("", _LDX_LEN, 0, "", ""),
    ("", _LDB, 9, "", ""),
    ("", _JEQ, 6, "tcp4", ""),
    ("", _JEQ, 17, "", "keep"),
    ("", _LDH_X, 0, "", ""),
    ("", _JEQ, 53, "drop", "keep"),  # our resolver's answer: nobody else can have port 53
    ("tcp4", _LDB_X, 13, "", ""),
    ("", _AND, 0x12, "", ""),
    ("", _JEQ, 2, "keep", "drop"),
    ("six?", _JEQ, 0x86DD, "", "keep"),
    ("", _LD, 24, "", ""),
    ("", _JEQ, 0, "", "six"),
    ("", _LD, 28, "", ""),
    ("", _JEQ, 0, "", "six"),
    ("", _LD, 32, "", ""),
    ("", _JEQ, 0, "", "six"),
    ("", _LD, 36, "", ""),
    ("", _JEQ, 1, "drop", ""),
    ("six", _LDB, 6, "", ""),
    ("", _JEQ, 6, "tcp6", ""),
    ("", _JEQ, 17, "", "keep"),
    ("", _LDH, 40, "", ""),
    ("", _JEQ, 53, "drop", "keep"),
    ("tcp6", _LDB, 53, "", ""),
    ("", _AND, 0x12, "", ""),
    ("", _JEQ, 2, "keep", "drop"),
    ("keep", _RET, SNAP, "", ""),
    ("drop", _RET, 0, "", ""),
)


def assemble(lines: Sequence[Line]) -> list[tuple[int, int, int, int]]:
    """Labels to distances: (code, jump if true, jump if false, k) of each line."""
    places = {label: number for number, (label, *_) in enumerate(lines) if label}

    def distance(number: int, label: str) -> int:
        return places[label] - number - 1 if label else 0

    return [
        (code, distance(number, true), distance(number, false), k)
        for number, (_, code, k, true, false) in enumerate(lines)
    ]
