"""Bytes of a box and numbers of a kernel as text for other people's formats. Pure."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from caisson_proto.record import Flag, Record

from caisson_runner.bundle.canonical import escape

LIMIT: Final = 4096
"""Bytes of one string that a format for looking shows; what is beyond is cut, and a … says so."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def shown(data: bytes, limit: int = LIMIT) -> str:
    """Printable text of bytes, in the bundle's escape, cut after ``limit`` bytes."""
    return escape(data) if len(data) <= limit else escape(data[:limit]) + "…"


def maybe(data: bytes | None, limit: int = LIMIT) -> str | None:
    return None if data is None else shown(data, limit)


def command_line(argv: Iterable[bytes], limit: int = LIMIT) -> str:
    """Arguments as one line a shell would take them from; cut."""
    parts: list[bytes] = []
    size = 0
    for argument in argv:
        parts.append(quoted(argument))
        size += len(argument) + 1
        if size > limit:
            break
    return shown(b" ".join(parts), limit)


def quoted(argument: bytes) -> bytes:
    """One argument in single quotes where a shell needs them."""
    plain = argument and all(byte in _PLAIN for byte in argument)
    return argument if plain else b"'" + argument.replace(b"'", b"'\\''") + b"'"


_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def stamp(wall_ns: int) -> str:
    """RFC 3339 in UTC, with all nine digits."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"


def errno_name(number: int) -> str | None:
    """``ENOENT`` of 2; None of 0."""
    return errno.errorcode.get(number, f"errno {number}") if number else None


def signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def flag_names(flags: Flag) -> list[str]:
    return [flag.name.lower() for flag in Flag if flag & flags and flag.name is not None]


class Address:
    """Where a socket's event went: ``ip`` and ``port``, or ``name`` of a unix socket; from `struct sockaddr`."""

    __slots__ = ("ip", "name", "port")

    def __init__(self, raw: bytes | None) -> None:
        self.ip: str | None = None
        self.port: int | None = None
        self.name: str | None = None
        family = int.from_bytes(raw[:2], "little") if raw is not None and len(raw) >= 2 else 0
        if raw is None:
            return
        if family == socket.AF_INET and len(raw) >= 8:
            self.ip, self.port = socket.inet_ntop(socket.AF_INET, raw[4:8]), int.from_bytes(raw[2:4], "big")
        elif family == socket.AF_INET6 and len(raw) >= 24:
            self.ip, self.port = socket.inet_ntop(socket.AF_INET6, raw[8:24]), int.from_bytes(raw[2:4], "big")
        elif family == socket.AF_UNIX:
            path = raw[2:]
            abstract = path.startswith(b"\0") and path.strip(b"\0")
            self.name = shown(b"@" + path[1:].rstrip(b"\0") if abstract else path.partition(b"\0")[0], 108)

    @property
    def known(self) -> bool:
        return self.ip is not None or self.name is not None


FAMILIES: Final = {1: "unix", 2: "inet", 10: "inet6", 16: "netlink", 17: "packet", 40: "vsock"}
PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
STREAM: Final = 1
DATAGRAM: Final = 2


def transport(family: int, kind: int, protocol: int) -> tuple[int | None, str | None]:
    """IP protocol number and name of a socket; a stream or datagram of protocol 0 has its family's default."""
    if family not in (2, 10):
        return None, None
    number = protocol or {STREAM: 6, DATAGRAM: 17}.get(kind & 0xF, 0)
    return (number, PROTOCOLS.get(number)) if number else (None, None)


def socket_of(record: Record) -> tuple[int, int, int]:
    """Family, type and protocol of a connect's or a socket event's socket."""
    if record.kind.name == "CONNECT":
        return record.args[0], record.args[4], record.args[2]
    return record.args[1], record.args[4] & 0xFFFF, record.args[4] >> 16
