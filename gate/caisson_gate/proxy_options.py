"""mitmproxy's options as the gate needs them. Its layers read them at every step; nothing else of it is configured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from mitmproxy import http
from mitmproxy.options import Options

_VALUES: Final[dict[str, Any]] = {
    "http2": True,
    "http2_ping_keepalive": 0,  # no wake-ups for idle upstreams: the idle limit ends them
    "http3": False,
    "rawtcp": False,
    "websocket": True,
    "ssl_insecure": False,
    "upstream_cert": False,
    # In mitmproxy these belong to addons, which are not loaded here.
    "body_size_limit": None,
    "connection_strategy": "lazy",
    "keep_host_header": True,
    "normalize_outbound_headers": True,
    "store_streamed_bodies": False,
    "stream_large_bodies": None,
    "tcp_timeout": 120,
    "validate_inbound_headers": True,
}


def _no_check(_self: http.MessageData) -> None:
    """In place of a look at the type of every field of every message, which is for those who write addons."""


def make_options() -> Options:
    """One set for every connection: what is given above over mitmproxy's own defaults, as plain attributes.

    mitmproxy's own object looks every option up in a table with a copy of its value, several times a request.
    """
    http.MessageData.__post_init__ = _no_check  # type: ignore[method-assign]
    defaults = {name: option.default for name, option in Options()._options.items()}
    return cast(Options, SimpleNamespace(**{**defaults, **_VALUES}))
