"""Canaries: listeners that hold what reached them, by nonce. What a client believes counts for nothing.

In the world every port of interest listens for every address, for TCP and for datagrams, and a packet socket sees what
has no listener; on the host there are its loopback, an abstract and a path unix socket, and files. Every answer holds
the secret, which no box is given: a box that shows it has reached something.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caisson_runner.redteam.errors import WorldRefused
from caisson_runner.redteam.outside import Names, answer, unmasked

TCP_PORTS: Final = (22, 25, 53, 80, 443, 853, 5432, 8080, 8443, 9418)
TLS_PORTS: Final = (443, 853, 8443)
UDP_PORTS: Final = (53, 137, 443, 3478, 5353, 5355, 9999)
_MOST: Final = 1 << 20
_ETH_P_ALL: Final = 3
_OUTGOING: Final = 4


@dataclass(slots=True)
class Held:
    """What the canaries hold. ``expect`` a nonce before a route runs; ``hits`` says where it was heard."""

    secret: str
    _nonces: dict[bytes, list[str]] = field(default_factory=dict)

    def expect(self, nonce: str) -> None:
        self._nonces[nonce.encode()] = []

    def forget(self, nonce: str) -> None:
        self._nonces.pop(nonce.encode(), None)

    def hear(self, where: str, data: bytes) -> None:
        """Note every nonce in what a canary got."""
        lower = data.lower()
        for nonce, places in self._nonces.items():
            if nonce in lower and where not in places:
                places.append(where)

    def hits(self, nonce: str) -> list[str]:
        return list(self._nonces.get(nonce.encode(), ()))


class Canaries:
    """Sockets are made by the constructors below, in the namespace they belong to; `start` serves them."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.names = Names()
        self._streams: list[tuple[str, socket.socket, ssl.SSLContext | None]] = []
        self._datagrams: list[tuple[str, socket.socket]] = []
        self._packets: socket.socket | None = None
        self._pipe = -1
        self._servers: list[asyncio.Server] = []
        self._talks: set[asyncio.Task[None]] = set()

    def on_host(self, folder: Path, abstract: str) -> dict[str, int]:
        """The host's: its loopback, unix names. Returns the ports."""
        stream, datagram = _bound("127.0.0.1", 0, socket.SOCK_STREAM), _bound("127.0.0.1", 0, socket.SOCK_DGRAM)
        self._streams.append(("host 127.0.0.1/tcp", stream, None))
        self._datagrams.append(("host 127.0.0.1/udp", datagram))
        for name, where in ((f"\0{abstract}", "host abstract unix"), (str(folder / "outside.sock"), "host unix path")):
            self._streams.append((where, _unix(name, socket.SOCK_STREAM), None))
        return {"host_port": stream.getsockname()[1], "host_udp_port": datagram.getsockname()[1]}

    def in_folder(self, folder: Path) -> None:
        """Sockets and a named pipe in a folder that boxes are shown."""
        os.mkfifo(folder / "pipe")
        (folder / "pipe").chmod(0o666)
        self._pipe = os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._streams.append(("unix socket in a shared folder", _unix(str(folder / "stream.sock"), 1), None))
        self._datagrams.append(("datagram socket in a shared folder", _unix(str(folder / "datagram.sock"), 2)))

    def in_world(self, context: ssl.SSLContext | None = None) -> dict[str, int]:
        """The world's: every port of interest on every address, its loopback, and whatever crosses its `lo`."""
        for port in TCP_PORTS:
            tls = context if port in TLS_PORTS else None
            self._streams.append((f"world {port}/tcp", _bound("::", port, socket.SOCK_STREAM), tls))
        for port in UDP_PORTS:
            self._datagrams.append((f"world {port}/udp", _bound("::", port, socket.SOCK_DGRAM)))
        loopback = _bound("::", 0, socket.SOCK_STREAM)
        self._streams.append(("world loopback/tcp", loopback, None))
        try:
            self._packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            self._packets.bind(("lo", _ETH_P_ALL))
            self._packets.setblocking(False)
        except OSError as problem:
            raise WorldRefused(f"no packet socket in the red team's world: {problem.strerror}") from problem
        return {"loopback_port": loopback.getsockname()[1]}

    async def start(self) -> None:
        """Serve every socket."""
        loop = asyncio.get_running_loop()
        for where, one, tls in self._streams:
            serve = self._talker(where)
            if one.family == socket.AF_UNIX:
                self._servers.append(await asyncio.start_unix_server(serve, sock=one))
            else:
                self._servers.append(await asyncio.start_server(serve, sock=one, ssl=tls))
        for where, one in self._datagrams:
            one.setblocking(False)
            loop.add_reader(one, self._datagram, where, one)
        if self._packets is not None:
            loop.add_reader(self._packets, self._packet, self._packets)
        if self._pipe >= 0:
            loop.add_reader(self._pipe, self._piped)

    async def stop(self) -> None:
        """Close every socket."""
        loop = asyncio.get_running_loop()
        for _, one in self._datagrams:
            loop.remove_reader(one)
            one.close()
        if self._packets is not None:
            loop.remove_reader(self._packets)
            self._packets.close()
        if self._pipe >= 0:
            loop.remove_reader(self._pipe)
            os.close(self._pipe)
        for server in self._servers:
            server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def settle(self) -> None:
        """Take in what lies in datagram and packet sockets already; streams are the loop's affair."""
        for where, one in self._datagrams:
            self._datagram(where, one)
        if self._packets is not None:
            self._packet(self._packets)
        if self._pipe >= 0:
            self._piped()

    def _piped(self) -> None:
        try:
            self.held.hear("named pipe in a shared folder", os.read(self._pipe, 1 << 16))
        except BlockingIOError:
            pass

    def _talker(self, where: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talk = asyncio.ensure_future(self._talk(where, reader, writer))
            self._talks.add(talk)
            talk.add_done_callback(self._talks.discard)

        return begin

    async def _talk(self, where: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = b""
        answered = upgraded = 0
        here = writer.get_extra_info("sockname")
        if where.startswith("world") and isinstance(here, tuple):
            where = f"world {_plain(here[0])}:{here[1]}/tcp"
        try:
            while len(got) < _MOST and (chunk := await reader.read(1 << 16)):
                got += chunk
                self.held.hear(where, got)
                if upgraded:
                    self.held.hear(f"{where} websocket", unmasked(got[upgraded:]))
                    continue
                heads = got.count(b"\r\n\r\n")
                if heads > answered:
                    said = answer(got, self.held.secret)
                    upgraded = len(got) if said.startswith(b"HTTP/1.1 101") else 0
                    writer.write(said)
                elif b"HTTP/" not in got and not answered:
                    writer.write(f"canary {self.held.secret}\n".encode())
                answered = max(heads, answered)
                await writer.drain()
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _datagram(self, where: str, one: socket.socket) -> None:
        while True:
            try:
                data, peer = one.recvfrom(1 << 16)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            self.held.hear(where, data)
            if isinstance(peer, tuple):
                said = self.names.answer(data) if "53/udp" in where else f"canary {self.held.secret}".encode()
                try:
                    if said:
                        one.sendto(said, peer)
                except OSError:
                    pass

    def _packet(self, one: socket.socket) -> None:
        while True:
            try:
                data, about = one.recvfrom(1 << 16)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            if about[2] != _OUTGOING:
                self.held.hear(f"world packet {_called(data, about[1])}", data)


def _called(data: bytes, kind: int) -> str:
    """A packet's protocol and destination."""
    try:
        if kind == 0x0800:
            port = f":{struct.unpack_from('>H', data, (data[0] & 15) * 4 + 2)[0]}" if data[9] in (6, 17) else ""
            return f"protocol {data[9]} to {socket.inet_ntop(socket.AF_INET, data[16:20])}{port}"
        if kind == 0x86DD:
            port = f":{struct.unpack_from('>H', data, 42)[0]}" if data[6] in (6, 17) else ""
            return f"protocol {data[6]} to {socket.inet_ntop(socket.AF_INET6, data[24:40])}{port}"
    except (struct.error, IndexError):
        pass
    return f"of type {kind:#06x}"


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def _bound(host: str, port: int, kind: int) -> socket.socket:
    """A listener; on ``::`` for both families where there are two."""
    try:
        if host == "::":
            try:
                made = socket.socket(socket.AF_INET6, kind)
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            except OSError:
                made, host = socket.socket(socket.AF_INET, kind), "0.0.0.0"  # noqa: S104 - of the world
        else:
            made = socket.socket(socket.AF_INET, kind)
        made.bind((host, port))
        if kind == socket.SOCK_STREAM:
            made.listen(64)
    except OSError as problem:
        raise WorldRefused(f"no canary on port {port}: {problem.strerror}") from problem
    return made


def _unix(name: str, kind: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(name)
    if not name.startswith("\0"):
        Path(name).chmod(0o777)  # as open as a careless person would leave it
    if kind == socket.SOCK_STREAM:
        made.listen(64)
    return made


def nonces_in(text: bytes, wanted: Iterable[str]) -> list[str]:
    """Which of these a text holds, however it is cased."""
    lower = text.lower()
    return [one for one in wanted if one.encode() in lower]
