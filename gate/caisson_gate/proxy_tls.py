"""TLS on both sides: towards the box with the run's own authority, towards the upstream with a checked name."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from mitmproxy.net import tls as net_tls
from OpenSSL import SSL

from caisson_gate.ca import Authority, system_bundle
from caisson_gate.errors import UpstreamCaUnusable

KEPT_CONTEXTS: Final = 256
HTTP_PROTOCOLS: Final = (b"h2", b"http/1.1")
CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:DHE+AESGCM:RSA+AESGCM:RSA+AES:!aNULL:!MD5"


class TlsContexts:
    """Makes the OpenSSL connections; contexts are kept, since making one costs more than a handshake."""

    def __init__(self, authority: Authority, upstream_ca: Path | None) -> None:
        """``upstream_ca``: whom to trust upstream, a PEM file; None for the host's own store."""
        self._authority = authority
        self._box: OrderedDict[str, SSL.Context] = OrderedDict()
        self._upstream = _context(SSL.TLS_CLIENT_METHOD)
        self._upstream.set_verify(SSL.VERIFY_PEER, lambda *args: bool(args[4]))
        if upstream_ca is not None:
            try:
                self._upstream.load_verify_locations(str(upstream_ca))
            except SSL.Error:
                raise UpstreamCaUnusable(f"{upstream_ca}: holds no certificate; name a PEM file") from None
        elif system_bundle():
            self._upstream.set_default_verify_paths()
        else:
            import certifi

            self._upstream.load_verify_locations(certifi.where())

    def for_box(self, host: str) -> SSL.Connection:
        """The server's side of a handshake with the box, as ``host`` (canonical)."""
        context = self._box.get(host)
        if context is None:
            context = _context(SSL.TLS_SERVER_METHOD)
            context.use_certificate(self._authority.leaf(host))
            context.use_privatekey(self._authority.leaf_key)
            context.set_alpn_select_callback(_choose_protocol)
            context.set_session_id(hashlib.sha256(host.encode()).digest()[:32])
            self._box[host] = context
            if len(self._box) > KEPT_CONTEXTS:
                self._box.popitem(last=False)
        else:
            self._box.move_to_end(host)
        made = SSL.Connection(context)
        made.set_accept_state()
        return made

    def for_upstream(self, host: str, offers: Iterable[bytes]) -> SSL.Connection:
        """The client's side of a handshake with an upstream, which must prove that it is ``host``."""
        made = SSL.Connection(self._upstream)
        library: Any = SSL._lib  # type: ignore[attr-defined]
        connection: Any = made
        parameters = library.SSL_get0_param(connection._ssl)
        try:
            packed = ip_address(host).packed
        except ValueError:
            name = host.encode("ascii")
            made.set_tlsext_host_name(name)
            library.X509_VERIFY_PARAM_set_hostflags(parameters, library.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS)
            done = library.X509_VERIFY_PARAM_set1_host(parameters, name, len(name))
        else:
            done = library.X509_VERIFY_PARAM_set1_ip(parameters, packed, len(packed))
        if done != 1:
            raise ValueError(f"OpenSSL does not take {host!r} as a name to check")
        protocols = [offer for offer in offers if offer in HTTP_PROTOCOLS]
        if protocols:
            made.set_alpn_protos(protocols)
        made.set_connect_state()
        return made


def fingerprint(ciphers: Iterable[int], extensions: Iterable[tuple[int, bytes]]) -> str:
    """Of a ClientHello: equal for the same client software, whatever host it asks for."""
    kinds = [kind for kind, _ in extensions if kind & 0x0F0F != 0x0A0A]  # without grease, which is random
    kept = [cipher for cipher in ciphers if cipher & 0x0F0F != 0x0A0A]
    return hashlib.sha256(repr((kept, sorted(kinds))).encode()).hexdigest()[:32]


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(net_tls.DEFAULT_MIN_VERSION.value)
    context.set_options(SSL.OP_NO_COMPRESSION | getattr(SSL, "OP_NO_RENEGOTIATION", 0))
    context.set_cipher_list(CIPHERS)
    return context


def _choose_protocol(_connection: SSL.Connection, offers: Any) -> Any:
    for offer in offers:
        if offer in HTTP_PROTOCOLS:
            return offer
    return SSL.NO_OVERLAPPING_PROTOCOLS
