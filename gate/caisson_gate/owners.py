"""Whose a connection is: the inode number of the socket at the box's end.

The witness writes the same number into its connect record, so that an event of the gate leads to a pid. The socket that
asks was made in the box's network and sees that network's table only.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address
from typing import Final

_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_INODE_AT: Final = 16 + 68
_NO_COOKIE: Final = 0xFFFFFFFF


class Owners:
    """One box's socket table."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    def inode(self, peer: tuple[str, int], here: tuple[str, int]) -> int | None:
        """Of the TCP socket whose connection came from ``peer`` to ``here``; None when it is gone already."""
        source, target = ip_address(peer[0].partition("%")[0]), ip_address(here[0].partition("%")[0])
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        where = struct.pack("!HH16s16sI2I", peer[1], here[1], source.packed, target.packed, 0, _NO_COOKIE, _NO_COOKIE)
        body = struct.pack("BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + where
        try:
            self._socket.send(struct.pack("IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0) + body)
            answer = self._socket.recv(4096)
        except OSError:
            return None
        if len(answer) < _INODE_AT + 4 or struct.unpack_from("H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
            return None
        return int(struct.unpack_from("I", answer, _INODE_AT)[0]) or None

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
