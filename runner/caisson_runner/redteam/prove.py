"""The rig's own control: before any route runs, every canary is reached once from where it could be, and must hear.

A canary that is deaf would make every route look blocked.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from caisson_runner.redteam.canaries import TCP_PORTS, TLS_PORTS, UDP_PORTS, Canaries
from caisson_runner.redteam.errors import WorldRefused

SOMEWHERE: Final = "198.51.100.7"
WAIT_S: Final = 30.0


class HostSide:
    """Sockets made in the host's network before it is left, to reach the host's canaries from."""

    def __init__(self, port: int, udp_port: int, abstract: str) -> None:
        self._tcp = socket.socket()
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._unix = socket.socket(socket.AF_UNIX)
        self._port, self._udp_port, self._abstract = port, udp_port, abstract

    def reach(self, nonce: bytes) -> list[str]:
        """Say the nonce to each; where it must have been heard."""
        with self._tcp, self._udp, self._unix:
            self._tcp.connect(("127.0.0.1", self._port))
            self._tcp.sendall(nonce)
            self._udp.sendto(nonce, ("127.0.0.1", self._udp_port))
            self._unix.connect(f"\0{self._abstract}")
            self._unix.sendall(nonce)
        return ["host 127.0.0.1/tcp", "host 127.0.0.1/udp", "host abstract unix"]


async def prove(canaries: Canaries, host: HostSide, places: Path, tls: bool) -> None:
    """WorldRefused names a canary that did not hear."""
    nonce = secrets.token_hex(12)
    canaries.held.expect(nonce)
    try:
        expected = await asyncio.to_thread(_reach, nonce.encode(), host, places, tls)
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while deaf := [where for where in expected if not _heard(where, canaries.held.hits(nonce))]:
            if asyncio.get_running_loop().time() > deadline:
                raise WorldRefused(f"the canary {deaf[0]!r} does not hear: the rig is broken, no route was run")
            await asyncio.sleep(0.02)
    except OSError as problem:
        raise WorldRefused(f"a canary could not be reached from the world itself: {problem}") from problem
    finally:
        canaries.held.forget(nonce)


def _heard(where: str, hits: list[str]) -> bool:
    return any(hit.startswith(where) for hit in hits)


def _reach(nonce: bytes, host: HostSide, places: Path, tls: bool) -> list[str]:
    expected = host.reach(nonce)
    for port in TCP_PORTS:
        with (
            socket.create_connection((SOMEWHERE, port), WAIT_S) as one,
            _dressed(one, tls and port in TLS_PORTS) as way,
        ):
            way.sendall(nonce)
        expected.append(f"world {SOMEWHERE}:{port}/tcp")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for port in UDP_PORTS:
            one.sendto(nonce, (SOMEWHERE, port))
            expected.append(f"world {port}/udp")
        one.sendto(nonce, (SOMEWHERE, 4711))  # where nobody listens
        expected.append(f"world packet protocol 17 to {SOMEWHERE}:4711")
    for name, where in (("outside.sock", "host unix path"), ("shared/stream.sock", "unix socket in a shared folder")):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(places / name))
            one.sendall(nonce)
        expected.append(where)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(nonce, str(places / "shared/datagram.sock"))
        expected.append("datagram socket in a shared folder")
    pipe = os.open(places / "shared/pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(pipe, nonce)
    os.close(pipe)
    return [*expected, "named pipe in a shared folder"]


@contextmanager
def _dressed(one: socket.socket, tls: bool) -> Iterator[socket.socket]:
    if not tls:
        yield one
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # a canary, of our own
    with context.wrap_socket(one, server_hostname="proof.allowed.test") as way:
        yield way
