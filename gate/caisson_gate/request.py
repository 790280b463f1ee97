"""What is asked of the gate, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from caisson_gate.names import Host
from caisson_gate.rules import DEFAULT_REQUEST_BYTES, DEFAULT_RESPONSE_BYTES, Inject, Phase

Kind = Literal["dns", "connect", "tls", "http", "ws", "tcp", "udp"]
MODE_BYTES = 1 << 40
"""Limit of a request or response that the mode lets through, in bytes: in effect none, yet a number."""


class Reason(StrEnum):
    """Why a request was refused. Stable: these stand in events, bundles and headers."""

    NOT_ALLOWED = "not_allowed"
    DENIED_RULE = "denied_rule"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PATH_NOT_ALLOWED = "path_not_allowed"
    PORT_NOT_ALLOWED = "port_not_allowed"
    IP_LITERAL = "ip_literal"
    ADDRESS_DENIED = "address_denied"
    HOST_MISMATCH = "host_mismatch"
    SNI_MISMATCH = "sni_mismatch"
    MALFORMED = "malformed"
    AFTER_DEADLINE = "after_deadline"
    UNDATED = "undated"
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"
    DNS_NOT_ALLOWED = "dns_not_allowed"
    DNS_MALFORMED = "dns_malformed"
    TLS_CLIENT_REJECTED_CA = "tls_client_rejected_ca"
    UPSTREAM_TLS_FAILED = "upstream_tls_failed"


HARD = frozenset(
    {
        Reason.MALFORMED,
        Reason.DNS_MALFORMED,
        Reason.HOST_MISMATCH,
        Reason.SNI_MISMATCH,
        Reason.ADDRESS_DENIED,
        Reason.AFTER_DEADLINE,
        Reason.PROTOCOL,
    }
)
"""Refused also where the policy's action is "report"."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request so far. Names are raw, exactly as they came; this module alone reads them.

    kind      dns: may this name be answered. connect: may this be gone on with (a captured connection, or CONNECT).
              tls: ClientHello read. http, ws: request head read. tcp: neither TLS nor HTTP came. udp: a datagram.
    port      that the box asked for.
    name_dns  the name whose synthetic address the connection goes to; for dns the name asked for, labels joined by
              dots *after* names.from_wire took them.
    name_connect  the CONNECT authority; for a captured connection to an address that no name stands for, that address.
    name_sni  server name of the ClientHello. name_host: Host or :authority, as sent, with its port if it has one.
    address   the address that was resolved and would be dialled; ask again with each. None before that.
    path, query  as sent, apart: b"/a" and b"b=c"; query is None without a question mark.
    length    declared or counted bytes of the request's body.
    now       seconds since the box's gate was opened.
    """

    kind: Kind
    port: int
    scheme: str = ""
    name_dns: bytes | None = None
    name_connect: bytes | None = None
    name_sni: bytes | None = None
    name_host: bytes | None = None
    address: str | None = None
    method: bytes | None = None
    path: bytes | None = None
    query: bytes | None = None
    length: int | None = None
    now: float = 0.0
    phase: Phase = "agent"
    content_type: bytes | None = None
    accept: bytes | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer. ``rule`` is the id of the rule, or "hard", "content", "mode" or "default".

    ``host``, ``port`` and ``path`` are canonical: dial, resolve and send upstream these and nothing the client wrote.
    ``status`` is what a refused HTTP request is answered with. ``reported``: let through by action = "report" only.
    """

    allowed: bool
    rule: str
    reason: Reason | None = None
    status: int = 200
    detail: str = ""
    reported: bool = False
    opaque: bool = False
    websocket: bool = False
    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    max_response_bytes: int = DEFAULT_RESPONSE_BYTES
    inject: Inject | None = None
    index: str = "none"
    host: Host | None = None
    port: int = 0
    path: bytes = b""
