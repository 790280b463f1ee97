"""The processes of gate_bench.py: an upstream, the gate, a bare mitmproxy, a client. Each says what it has as JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAME = "bench.test"
BODY = b"x" * 200
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
PIECE = b"y" * (1 << 18)
POLICY = f"""
schema = "caisson.gate/v1"
network_mode = "allowlist"
[[allow]]
id = "bench"
hosts = ["{NAME}"]
ports = "any"
methods = ["GET", "POST"]
max_request_bytes = 10_000_000_000
max_response_bytes = 10_000_000_000
"""


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


class Upstream(asyncio.Protocol):
    """``/``: a small answer. ``/big/N``: N MiB."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.left = 0
        self.waiting = False
        self.head = b""

    def data_received(self, data: bytes) -> None:
        self.head += data
        while (end := self.head.find(b"\r\n\r\n")) >= 0:
            path, self.head = self.head.split(b" ", 2)[1], self.head[end + 4 :]
            if path.startswith(b"/big/"):
                self.left = int(path[5:]) << 20
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % self.left)
                self.pump()
            else:
                self.transport.write(ANSWER)

    def pump(self) -> None:
        while self.left and not self.waiting:
            piece = PIECE[: self.left]
            self.left -= len(piece)
            self.transport.write(piece)

    def pause_writing(self) -> None:
        self.waiting = True

    def resume_writing(self) -> None:
        self.waiting = False
        self.pump()


async def upstream(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    ports = {}
    for name in ("plain", NAME, "127.0.0.1"):
        context = None
        if name != "plain":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / f"{name}.pem")
        server = await loop.create_server(Upstream, "127.0.0.1", 0, ssl=context)
        ports[name] = server.sockets[0].getsockname()[1]
    say(ports=ports)
    await asyncio.Event().wait()


async def gate(folder: Path, plain: int, secure: int) -> None:
    """Front, policy, proxy, journal: all that a box's connection meets, except the box."""
    from caisson_gate.ca import Authority
    from caisson_gate.events import Journal
    from caisson_gate.front import Front
    from caisson_gate.policy import parse
    from caisson_gate.pool import Pool
    from caisson_gate.proxy import Proxy
    from caisson_gate.resolve import Resolver
    from caisson_gate.served import Served

    class Everywhere(Pool):
        def name(self, address: str) -> str | None:
            return NAME

    class Two(Resolver):
        async def resolve(self, name: str, port: int, judge: Any) -> Any:
            from caisson_gate.resolve import Target

            return Target("127.0.0.1", secure if port == ports["secure"] else plain, True)

    policy = parse(POLICY.encode())
    kept = Path(tempfile.mkdtemp(dir=folder))
    journal = Journal(kept / "events.jsonl", run="bench", box="box", policy_sha256=policy.sha256)
    served = Served("box", "bench", policy, journal, kept, Two({}), Everywhere())
    authority = Authority("bench")
    proxy = Proxy({"box": served}, authority, folder / "world.pem")
    await proxy.start()
    await proxy.opened(served)
    front = Front(served, proxy, None)
    servers = {name: await asyncio.start_server(front.serve, "127.0.0.1", 0) for name in ("plain", "secure")}
    ports = {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
    (folder / "gate-ca.pem").write_bytes(authority.pem)
    gc.freeze()
    say(ports=ports, ca="gate-ca.pem")
    await asyncio.Event().wait()


async def bare(folder: Path, plain: int, secure: int) -> None:
    """mitmproxy with the addons it cannot do without, bodies streamed, nothing recorded, nothing decided."""
    from mitmproxy import options
    from mitmproxy.addons import core, next_layer, proxyserver, tlsconfig
    from mitmproxy.master import Master

    conf = folder / "bare"
    made = options.Options(
        confdir=str(conf),
        mode=[f"reverse:http://127.0.0.1:{plain}@127.0.0.1:0", f"reverse:https://127.0.0.1:{secure}@127.0.0.1:0"],
        ssl_verify_upstream_trusted_ca=str(folder / "world.pem"),
    )
    master = Master(made)
    server = proxyserver.Proxyserver()
    master.addons.add(core.Core(), server, next_layer.NextLayer(), tlsconfig.TlsConfig())
    made.update(connection_strategy="lazy", stream_large_bodies="1", upstream_cert=False, rawtcp=False)
    task = asyncio.ensure_future(master.run())
    while not (server.is_running and all(one.is_running for one in server.servers)):
        await asyncio.sleep(0.02)
    ports = {}
    for one in server.servers:
        kind = "secure" if "https" in one.mode.full_spec else "plain"
        ports[kind] = one.listen_addrs[0][1]
    gc.freeze()
    say(ports=ports, ca="bare/mitmproxy-ca-cert.pem")
    await task


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, request: bytes, size: int, until: float) -> None:
        self.request, self.size, self.until = request, size, until
        self.got, self.times = 0, []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.began = time.perf_counter()
        self.got = 0
        self.head = b""
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.head is not None:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self.head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(RuntimeError(self.head[:300]))
                return
            data, self.head = self.head[end + 4 :], None
        self.got += len(data)
        if self.got >= self.size:
            now = time.perf_counter()
            self.times.append(now - self.began)
            if now >= self.until:
                self.transport.close()
                if not self.done.done():
                    self.done.set_result(None)
            else:
                self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("closed early"))


async def client(folder: Path, plan: dict[str, Any]) -> None:
    """``many``: connections that ask for seconds. ``fresh``: one request a connection. ``big``: one large answer."""
    loop = asyncio.get_running_loop()
    context = None
    if plan["ca"]:
        context = ssl.create_default_context(cafile=str(folder / plan["ca"]))
        context.set_alpn_protocols(["http/1.1"])
    host, port = plan["host"], plan["port"]
    big = plan["kind"] == "big"
    path = f"/big/{plan['mib']}" if big else "/"
    size = plan["mib"] << 20 if big else len(BODY)
    usual = f"{host}:{port}"
    request = f"GET {path} HTTP/1.1\r\nHost: {usual}\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n".encode()
    until = time.perf_counter() + plan.get("seconds", 0)
    options = {"ssl": context, "server_hostname": host if context else None}

    async def keep() -> list[float]:
        _, one = await loop.create_connection(lambda: Client(request, size, until), "127.0.0.1", port, **options)
        await one.done
        return list(one.times)

    async def fresh() -> list[float]:
        times = []
        while (began := time.perf_counter()) < until:
            _, one = await loop.create_connection(lambda: Client(request, size, 0), "127.0.0.1", port, **options)
            await one.done
            times.append(time.perf_counter() - began)
        return times

    began = time.perf_counter()
    work = fresh if plan["kind"] == "fresh" else keep
    made = await asyncio.gather(*(work() for _ in range(plan["connections"])))
    took = time.perf_counter() - began
    times = sorted(value for one in made for value in one)
    say(count=len(times), took=took, p50=times[len(times) // 2], p99=times[int(len(times) * 0.99)])


if __name__ == "__main__":
    role, place, *rest = sys.argv[1:]
    folder = Path(place)
    if role == "client":
        asyncio.run(client(folder, json.loads(rest[0])))
    else:
        asyncio.run({"upstream": upstream, "gate": gate, "bare": bare}[role](folder, *map(int, rest)))
