"""Which header fields of a box's request go upstream. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Field = tuple[bytes, bytes]

_OVERRIDES: Final = frozenset(
    b"forwarded x-forwarded-host x-forwarded-server x-forwarded-uri x-forwarded-path x-forwarded-prefix x-host "
    b"x-original-host x-original-url x-original-uri x-rewrite-url x-rewrite-uri x-override-url x-http-path-override "
    b"x-envoy-original-path x-envoy-original-host x-http-method x-http-method-override x-method-override".split()
)
"""By these some upstreams take another host, path or method than the one that was decided on."""
_NOT_FORWARDED: Final = _OVERRIDES | frozenset(
    b"proxy-connection proxy-authorization alt-used http2-settings sec-websocket-extensions".split()
)
"""The last: a message that is sent compressed unfolds to any size, and is recorded as nobody saw it."""
_TWINS: Final = _NOT_FORWARDED | frozenset(b"host content-length transfer-encoding connection upgrade".split())
"""Not forwarded either when spelled with underscores, which CGI and what came after it read as hyphens."""
_CONNECTION: Final = frozenset({b"close", b"keep-alive", b"upgrade"})
"""What `Connection` may say. Any other field that it names, `Host` too, the next proxy would take away."""


def forwarded(fields: Iterable[Field]) -> list[Field]:
    """The fields that may go on."""
    kept: list[Field] = []
    for name, value in fields:
        lower = name.lower()
        if lower in _NOT_FORWARDED or (b"_" in lower and hyphened(lower) in _TWINS):
            continue
        if lower == b"connection":
            value = b", ".join(part for part in map(bytes.strip, value.split(b",")) if part.lower() in _CONNECTION)
            if not value:
                continue
        kept.append((name, value))
    return kept


def hyphened(name: bytes) -> bytes:
    """A field's name as CGI would have it, in lower case."""
    return name.lower().replace(b"_", b"-")
