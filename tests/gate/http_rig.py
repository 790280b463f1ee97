"""A proxy without namespaces: a local listener stands for the box's network, local TLS servers for the world.

Upstreams are canaries: they keep every byte they were sent, so what reached the outside is never a matter of opinion.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caisson_gate.arrival import EXPLICIT_PORT, Arrival
from caisson_gate.ca import Authority
from caisson_gate.events import Journal, read
from caisson_gate.hello import looks_like, read_hello
from caisson_gate.policy import parse
from caisson_gate.pool import OWN, Pool
from caisson_gate.proxy import Proxy
from caisson_gate.resolve import Resolver
from caisson_gate.served import Served
from cryptography.hazmat.primitives import serialization

LIMIT_S = 60.0
"""No test waits longer for anything."""
Answer = Callable[[bytes, bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """One server of the world, and all it was ever sent."""

    port: int
    seen: bytearray = field(default_factory=bytearray)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0


@dataclass
class World:
    """Certificates of the world and the servers in it."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority("the world"))
    pins: dict[str, tuple[str, int | None]] = field(default_factory=dict)

    @property
    def ca(self) -> Path:
        path = self.folder / "world.pem"
        if not path.exists():
            path.write_bytes(self.authority.pem)
        return path

    def tls(self, name: str, protocols: tuple[str, ...] = ("http/1.1",), ca: Authority | None = None) -> ssl.SSLContext:
        """A server's context, with a certificate for the name."""
        authority = ca or self.authority
        made = self.folder / f"{name}.pem"
        key = authority.leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        made.write_bytes(authority.leaf(name).public_bytes(serialization.Encoding.PEM) + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made)
        context.set_alpn_protocols(list(protocols))
        return context

    @contextlib.asynccontextmanager
    async def upstream(
        self, name: str, answer: Answer, *, tls: bool = True, ca: Authority | None = None
    ) -> AsyncIterator[Upstream]:
        """A small HTTP/1 server; ``answer`` gets the head, the body (when it has a length) and the writer."""
        kept = Upstream(0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            kept.connections += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    kept.seen += head
                    kept.heads.append(head)
                    fields = {
                        part.split(b":", 1)[0].lower(): part.split(b":", 1)[1].strip()
                        for part in head.split(b"\r\n")[1:]
                        if b":" in part
                    }
                    body = b""
                    if b"content-length" in fields:
                        left = int(fields[b"content-length"])
                        while left and (chunk := await reader.read(min(left, 1 << 16))):
                            kept.seen += chunk[: 1 << 10]
                            body = (body + chunk)[: 1 << 20]
                            left -= len(chunk)
                    elif fields.get(b"transfer-encoding") == b"chunked":
                        while size := int(await reader.readline(), 16):
                            chunk = await reader.readexactly(size + 2)
                            kept.seen += chunk[: 1 << 10]
                            body = (body + chunk[:-2])[: 1 << 20]
                        await reader.readline()
                    await answer(head, body, writer)
                    await writer.drain()
                    if writer.is_closing():
                        break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self.tls(name, ca=ca) if tls else None)
        kept.port = server.sockets[0].getsockname()[1]
        self.pins[name] = ("127.0.0.1", kept.port)
        try:
            yield kept
        finally:
            server.close()


async def say(writer: asyncio.StreamWriter, body: bytes, *headers: bytes, status: bytes = b"200 OK") -> None:
    """A plain answer with a length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n%s\r\n%s" % (status, len(body), lines, body))


async def hello(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
    """What most upstreams here say."""
    await say(writer, b"hello from outside\n")


async def echo(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Repeats everything, which is how a credential would come back."""
    await say(writer, head + body)


class Box:
    """A box's view: listeners that lead to the proxy, and its journal."""

    def __init__(self, served: Served, proxy: Proxy, authority: Authority) -> None:
        self.served, self.proxy, self.authority = served, proxy, authority
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, name: str | None, port: int = 443, *, address: str | None = None) -> int:
        """A local port that behaves as ``name:port`` does in a box. ``name`` None: an address nobody gave out."""
        return await self._listen(name, (address or (self.served.pool.address(name) if name else "192.0.2.9"), port))

    async def proxy_port(self) -> int:
        """A local port that behaves as the explicit proxy."""
        return await self._listen(None, (OWN, EXPLICIT_PORT))

    async def _listen(self, name: str | None, dst: tuple[str, int]) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            first, sni = b"", None
            while (kind := looks_like(first)) is None or (kind == "tls" and (found := read_hello(first)) is None):
                more = await reader.read(1 << 16)
                if not more:
                    break
                first += more
            if kind == "tls" and found is not None:
                sni = found.sni
            source = writer.get_extra_info("peername")[1]
            arrival = Arrival(
                self.served.box, next(self.served.numbers), source, dst, name, sni, first, first[:1] == b"\x16"
            )
            try:
                await self.proxy.serve(arrival, reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal so far."""
        return [one for one in read(self.served.journal.path) if not kinds or one["kind"] in kinds]

    async def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields."""

        async def wait() -> dict[str, Any]:
            while True:
                for one in self.events(kind):
                    if all(one.get(name) == value for name, value in fields.items()):
                        return one
                await asyncio.sleep(0.02)

        try:
            return await asyncio.wait_for(wait(), LIMIT_S)
        except TimeoutError:
            raise AssertionError(f"no {kind} event with {fields}; there are {self.events()}") from None

    @property
    def trust(self) -> ssl.SSLContext:
        """A client that trusts the run's authority."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def connect(
        self, name: str, port: int = 443, *, tls: bool = True, sni: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection."""
        local = await self.listen(name, port)
        if not tls:
            return await asyncio.open_connection("127.0.0.1", local)
        return await asyncio.open_connection("127.0.0.1", local, ssl=self.trust, server_hostname=sni or name)

    async def ask(self, name: str, request: bytes, port: int = 443, *, tls: bool = True) -> bytes:
        """Send raw bytes, read until the other side closes."""
        reader, writer = await self.connect(name, port, tls=tls)
        writer.write(request)
        return await finish(reader, writer)

    async def get(self, name: str, path: str = "/", *, port: int = 443, tls: bool = True, headers: str = "") -> bytes:
        """A GET that asks for the connection to be closed."""
        host = name if port in (80, 443) else f"{name}:{port}"
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        return await self.ask(name, head.encode(), port, tls=tls)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def forget_peak() -> int:
    """Begin a new peak of this process's memory; what it holds now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most this process held since `forget_peak`, in KiB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


async def finish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Everything until the end."""
    try:
        return await asyncio.wait_for(reader.read(-1), LIMIT_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def answer_of(data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an HTTP/1 answer with a length or until the end."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, body


@contextlib.asynccontextmanager
async def box(
    world: World,
    policy: str,
    folder: Path,
    *,
    record: bool = True,
    replay: Path | None = None,
    environ: Mapping[str, str] | None = None,
    name: str = "box",
    lookup: Any = None,
) -> AsyncIterator[Box]:
    """One box with a proxy of its own."""
    folder.mkdir(exist_ok=True, parents=True)
    made = parse(('schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n' + policy).encode())
    journal = Journal(folder / "events.jsonl", run="run", box=name, policy_sha256=made.sha256)
    resolver = Resolver(world.pins, lookup) if lookup is not None else Resolver(world.pins)
    served = Served(name, "run", made, journal, folder, resolver, Pool(), record=record, replay=replay)
    authority = Authority("run")
    proxy = Proxy({name: served}, authority, world.ca, environ or {})
    await proxy.start()
    await proxy.opened(served)
    view = Box(served, proxy, authority)
    try:
        yield view
    finally:
        await view.close()
        await proxy.stop()
        journal.close()
