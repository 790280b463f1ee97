"""Where callers come in: one socket for each user, and TCP with mutual TLS when asked for; all with bounds.

Who speaks is decided here and nowhere else: by the socket's permissions, or by the name in the client's certificate.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # pyright: ignore[reportAttributeAccessIssue]

from caisson_tracerd.errors import NotYours, ServeError, UsageError
from caisson_tracerd.layout import Layout
from caisson_tracerd.log import LOG, Priority
from caisson_tracerd.refusals import Refusals
from caisson_tracerd.registry import Registry
from caisson_tracerd.service import Caller, Service

SERVICE_NAME: Final = "caisson.v1.Tracerd"
CALLS_AT_ONCE: Final = 512
"""On one socket; more are refused at once."""
GRACE_S: Final = 1.0
REQUEST_BYTES: Final = 1 << 16
"""Requests are names and numbers."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", REQUEST_BYTES),
    ("grpc.max_metadata_size", 1 << 13),
    ("grpc.absolute_max_metadata_size", 1 << 14),
    ("grpc.max_concurrent_streams", 256),  # of one connection
    ("grpc.max_allowed_incoming_connections", 256),  # of one socket
    ("grpc.server_handshake_timeout_ms", 5_000),  # one who connects and says nothing, or too slowly
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Tcp:
    """Where to listen, with whose papers, and which uid each client certificate's name stands for."""

    address: str
    certificate: Path
    key: Path
    authority: Path
    users: Mapping[str, int]

    @classmethod
    def checked(
        cls, address: str, certificate: Path | None, key: Path | None, authority: Path | None, users: Mapping[str, int]
    ) -> Tcp:
        """UsageError unless everything for mutual TLS is there: TCP has no other way to tell who speaks."""
        host, colon, port = address.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise UsageError(f"address {address!r} is not HOST:PORT")
        if certificate is None or key is None or authority is None:
            raise UsageError(f"TCP at {address} needs mutual TLS: give --tls-cert, --tls-key and --tls-ca")
        if not users:
            raise UsageError(f"TCP at {address} would serve nobody: say who a certificate is with --tls-user NAME=USER")
        return cls(address, certificate, key, authority, dict(users))

    def credentials(self) -> grpc.ServerCredentials:
        """Asks every client for a certificate of the authority."""
        try:
            papers = [path.read_bytes() for path in (self.key, self.certificate, self.authority)]
        except OSError as problem:
            raise ServeError(f"TLS file {problem.filename} cannot be read: {problem.strerror}") from None
        return grpc.ssl_server_credentials([(papers[0], papers[1])], papers[2], require_client_auth=True)

    def uid(self, papers: Mapping[str, Any]) -> int:
        """Whose certificate this is. NotYours when the authority signed it and nobody here knows the name."""
        names = [
            bytes(name).decode("utf-8", "replace")
            for kind in ("x509_subject_alternative_name", "x509_common_name")
            for name in papers.get(kind, ())
        ]
        if papers.get("transport_security_type", [b""])[0] != b"ssl":
            raise NotYours("the connection is not secured; nobody knows who you are")
        for name in names:
            if name in self.users:
                return self.users[name]
        raise NotYours(f"no user is known by the name {names[0][:80] if names else ''!a}; ask the operator to add it")


@contextlib.asynccontextmanager
async def listening(
    layout: Layout, registry: Registry, uids: set[int], info: pb.GetInfoResponse, tcp: Tcp | None
) -> AsyncIterator[None]:
    """Every socket, gone at the end."""
    async with contextlib.AsyncExitStack() as stack:
        for uid in sorted(uids):
            await stack.enter_async_context(_socket(layout, registry, uid, info))
        if tcp is not None:
            await stack.enter_async_context(_tcp(registry, tcp, info))
        yield


@contextlib.asynccontextmanager
async def _socket(layout: Layout, registry: Registry, uid: int, info: pb.GetInfoResponse) -> AsyncIterator[None]:
    path = layout.socket(uid)
    async with _server(registry, lambda _: uid, info, str(uid)) as server:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o755)
            path.unlink(missing_ok=True)  # a killed daemon's; the lock says that nobody listens
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            path.chmod(0o600)
            os.chown(path, uid, -1)
        except (RuntimeError, OSError) as problem:
            raise ServeError(f"socket {path} cannot be made: {problem}") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()


@contextlib.asynccontextmanager
async def _tcp(registry: Registry, tcp: Tcp, info: pb.GetInfoResponse) -> AsyncIterator[None]:
    async with _server(registry, lambda context: tcp.uid(context.auth_context()), info, tcp.address) as server:
        try:
            port = server.add_secure_port(tcp.address, tcp.credentials())
            await server.start()
        except RuntimeError as problem:
            raise ServeError(f"TCP at {tcp.address} cannot be served: {problem}") from None
        LOG.say(Priority.NOTICE, "TCP is served with mutual TLS", address=tcp.address, port=port)
        yield


@contextlib.asynccontextmanager
async def _server(
    registry: Registry, caller: Caller, info: pb.GetInfoResponse, where: str
) -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server(
        options=OPTIONS, maximum_concurrent_rpcs=CALLS_AT_ONCE, interceptors=[Refusals(where, REQUEST_BYTES)]
    )
    checker = health.HealthServicer()
    rpc.add_TracerdServicer_to_server(Service(registry, caller, info), server)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ("", SERVICE_NAME):
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield server
    finally:
        await checker.enter_graceful_shutdown()
        await server.stop(GRACE_S)
