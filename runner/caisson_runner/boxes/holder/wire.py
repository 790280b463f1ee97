"""Messages between runner, keeper and holder: a 4-byte length, JSON, and descriptors beside the length."""

from __future__ import annotations

import array
import json
import socket
from typing import Any, Final

HEADER: Final = 4
MAX_DESCRIPTORS: Final = 16
MAX_PACKET: Final = 1 << 17
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """The bytes of a message, with its header. Odd bytes travel as lone surrogates (``os.fsdecode``)."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(HEADER, "little") + body


def decode(body: bytes) -> Message:
    """A message's body."""
    message: Message = json.loads(body)
    return message


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message and its descriptors on a blocking socket."""
    data = encode(message)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = sock.sendmsg([data], rights)
    if sent < len(data):
        sock.sendall(memoryview(data)[sent:])


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors, or None at end of file. Blocking."""
    descriptors = array.array("i")
    size = descriptors.itemsize
    header = b""
    while len(header) < HEADER:
        data, ancillary, _, _ = sock.recvmsg(
            HEADER - len(header), socket.CMSG_SPACE(MAX_DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % size])
        if not data:
            return None
        header += data
    left = int.from_bytes(header, "little")
    body = bytearray()
    while left:
        data = sock.recv(min(left, 1 << 20))
        if not data:
            return None
        body += data
        left -= len(data)
    return decode(bytes(body)), list(descriptors)


def receive_packet(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message of a packet socket, or None at end of file. Several processes may wait on one."""
    descriptors = array.array("i")
    size = descriptors.itemsize
    data, ancillary, _, _ = sock.recvmsg(MAX_PACKET, socket.CMSG_SPACE(MAX_DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % size])
    return (decode(data[HEADER:]), list(descriptors)) if data else None
