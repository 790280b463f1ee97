"""Messages between the runner and its gate process: one JSON packet each, descriptors beside it."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Iterator
from typing import Any, Final

Message = dict[str, Any]
MAX_PACKET: Final = 1 << 17
MAX_DESCRIPTORS: Final = 250
"""The kernel takes 253."""
_SIZE: Final = array.array("i").itemsize


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair that keeps packets apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """One packet. OSError when the other side is gone, BlockingIOError when it does not read."""
    data = json.dumps(message, separators=(",", ":")).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next packet and its descriptors, None at the end; BlockingIOError when a non-blocking socket has none."""
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * _SIZE)
    data, ancillary, _, _ = sock.recvmsg(MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % _SIZE])
    return (json.loads(data), list(descriptors)) if data else None


def waiting(sock: socket.socket) -> Iterator[tuple[Message, list[int]] | None]:
    """Every packet that a non-blocking socket has; None, and no more, when the other side is gone."""
    while True:
        try:
            received = receive(sock)
        except BlockingIOError:
            return
        except OSError:
            received = None
        yield received
        if received is None:
            return
