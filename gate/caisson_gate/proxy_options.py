"""mitmproxy's options as the gate needs them. Its layers read them; nothing else of mitmproxy is configured."""

from __future__ import annotations

from typing import Any, Final

from mitmproxy.options import Options

_VALUES: Final[dict[str, Any]] = {
    "http2": True,
    "http2_ping_keepalive": 0,  # no wake-ups for idle upstreams: the idle limit ends them
    "http3": False,
    "rawtcp": False,
    "websocket": True,
    "ssl_insecure": False,
    "upstream_cert": False,
    "onboarding": False,
}
_ADDED: Final[dict[str, Any]] = {  # in mitmproxy these belong to addons, which are not loaded here
    "body_size_limit": None,
    "connection_strategy": "lazy",
    "keep_host_header": True,
    "normalize_outbound_headers": True,
    "store_streamed_bodies": False,
    "stream_large_bodies": None,
    "tcp_timeout": 120,
    "validate_inbound_headers": True,
}


def make_options() -> Options:
    """One set for every connection. What this mitmproxy has no option for is left out."""
    options = Options()
    for name, value in _ADDED.items():
        if name not in options:
            options.add_option(name, type(value) if value is not None else str | None, value, "")
    for name, value in _VALUES.items():
        if name in options:
            setattr(options, name, value)
    return options
