"""The world's name server and certificates: what a gate finds here where a real one finds the internet."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path
from typing import Final
from urllib.parse import unquote

HOME: Final = "203.0.113.80"
"""Where every name of the world lives, unless `_ODD` says otherwise."""
_ODD: Final = {
    "loop.allowed.test": (("127.0.0.1",),),
    "private.allowed.test": (("192.168.0.9",),),
    "mixed.allowed.test": ((HOME, "127.0.0.1"),),
    "turn.allowed.test": ((HOME,), ("127.0.0.1",)),
    "metadata.google.internal": (("169.254.169.254",),),
}
"""Name to the addresses of its first look-up, its second, …; the last stays."""
RESOLV: Final = "nameserver 198.51.100.53\noptions timeout:2 attempts:1\n"
NSSWITCH: Final = "hosts: files dns\n"
HOSTS: Final = "127.0.0.1 localhost\n::1 localhost\n"


class Names:
    """Answers for ``.test`` and a few odd names; nothing else exists in the world."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def answer(self, packet: bytes) -> bytes:
        """The reply to one question; empty for what is none."""
        try:
            number, bits, count = struct.unpack_from(">HHH", packet)
            if count != 1 or bits & 0x8000:
                return b""
            labels, at = [], 12
            while size := packet[at]:
                labels.append(packet[at + 1 : at + 1 + size].decode("ascii").lower())
                at += 1 + size
            kind = struct.unpack_from(">H", packet, at + 1)[0]
        except (struct.error, IndexError, UnicodeDecodeError):
            return b""
        name, question = ".".join(labels), packet[12 : at + 5]
        known = name in _ODD or name.endswith(".test")
        given = self._addresses(name) if known and kind == 1 else ()
        head = struct.pack(">HHHHHH", number, 0x8580 | (0 if known else 3), 1, len(given), 0, 0)
        records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(one) for one in given]
        return head + question + b"".join(records)

    def _addresses(self, name: str) -> tuple[str, ...]:
        turns = _ODD.get(name, ((HOME,),))
        turn = self._asked.get(name, 0)
        self._asked[name] = turn + 1
        return turns[min(turn, len(turns) - 1)]


def certificates(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context that has a certificate for every name that is asked for, and the authority to trust.

    ImportError where the gate's own packages are not installed.
    """
    from caisson_gate.ca import Authority
    from cryptography.hazmat.primitives import serialization

    authority = Authority("the red team's world")
    trusted = folder / "world.pem"
    trusted.write_bytes(authority.pem)
    key = authority.leaf_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made: dict[str, ssl.SSLContext] = {}

    def context_for(name: str) -> ssl.SSLContext:
        if name not in made:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            path = folder / f"leaf-{len(made)}.pem"
            path.write_bytes(authority.leaf(name).public_bytes(serialization.Encoding.PEM) + key)
            context.load_cert_chain(path)
            path.unlink()
            made[name] = context
        return made[name]

    first = context_for("web.allowed.test")

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        if name and len(made) < 1000:
            connection.context = context_for(name)

    first.sni_callback = choose
    return first, trusted


def answer(head: bytes, secret: str) -> bytes:
    """What a canary says to the last request it got."""
    last = head.rpartition(b"\r\n\r\n")[0].rpartition(b"\r\n\r\n")[2]
    target = last.split(b" ", 2)[1].decode("ascii", "replace") if last.count(b" ") > 1 else "/"
    lower = last.lower()
    if "/redirect?to=" in target:
        where = unquote(target.partition("?to=")[2])
        return f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode("ascii", "replace")
    if b"upgrade: websocket" in lower and b"sec-websocket-key:" in lower:
        return _websocket(last)
    body = f"canary {secret}\n".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _websocket(head: bytes) -> bytes:
    import base64
    import hashlib

    key = next(
        line.partition(b":")[2].strip()
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"sec-websocket-key:")
    )
    token = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())  # noqa: S324 - RFC 6455
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
        + token
        + b"\r\n\r\n"
    )


def unmasked(data: bytes) -> bytes:
    """The payload of short client frames in a stream, so that a nonce in one can be found. Pure, and forgiving."""
    found, at = b"", 0
    while at + 6 <= len(data):
        size = data[at + 1] & 127
        if not data[at + 1] & 0x80 or size > 125:
            return found
        mask, body = data[at + 2 : at + 6], data[at + 6 : at + 6 + size]
        found += bytes(byte ^ mask[place % 4] for place, byte in enumerate(body))
        at += 6 + size
    return found
