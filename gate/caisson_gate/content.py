"""What a request is for, told by its shape alone: the git protocol over HTTP, and DNS inside HTTPS."""

from __future__ import annotations

import re

from caisson_gate.paths import query_pairs

_DNS_MEDIA = (b"application/dns-message", b"application/dns-json", b"application/dns-udpwireformat")
_DNS_PATH = re.compile(rb"/dns-query/*$", re.IGNORECASE)
_DNS_HINT = re.compile(rb"dns|%|name=", re.IGNORECASE)
_DNS_JSON = re.compile(rb"/resolve/*$", re.IGNORECASE)
"""Where some resolvers answer `?name=…` with JSON."""
_DNS_KEY = re.compile(rb"[A-Za-z0-9_-]{16,}={0,2}")
_GIT_TAILS = ((b"/git-upload-pack", "fetch"), (b"/git-upload-archive", "fetch"), (b"/git-receive-pack", "push"))
_GIT_DUMB = re.compile(
    rb"/objects/(?:info/(?:packs|alternates|http-alternates)|[0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]{40,64}\.(?:pack|idx))$|/\.git/|/HEAD$"
)
_HINT = re.compile(rb"git-|/info/|/objects/|\.git/|/HEAD$", re.IGNORECASE)
"""In every path of the protocol: most requests are told apart by this alone."""
_LFS = re.compile(rb"/info/lfs(?:/|$)")


def git_service(path: bytes, query: bytes | None, content_type: bytes | None) -> str:
    """ "fetch" or "push" when the git protocol is spoken (smart or dumb, with LFS), else ""."""
    if content_type is None and not _HINT.search(path):
        return ""
    tail = path.rstrip(b"/").lower()
    if content_type is not None and content_type.lower().startswith(b"application/x-git-"):
        return "push" if b"receive-pack" in content_type.lower() else "fetch"
    for end, service in _GIT_TAILS:
        if tail.endswith(end):
            return service
    if tail.endswith(b"/info/refs"):
        return "push" if query is not None and b"receive-pack" in query.lower() else "fetch"
    if _LFS.search(tail):
        return "push" if tail.endswith((b"/verify", b"/locks", b"/unlock")) else "fetch"
    return "fetch" if _GIT_DUMB.search(path) else ""


def dns_message(path: bytes, query: bytes | None, content_type: bytes | None, accept: bytes | None) -> bool:
    """Whether this is a DNS question in an HTTP request: by path, media type or query."""
    if _DNS_PATH.search(path):
        return True
    for header in (content_type, accept):
        if header is not None and any(media in header.lower() for media in _DNS_MEDIA):
            return True
    if not query or not _DNS_HINT.search(query):
        return False
    pairs = query_pairs(query) or ()
    if _DNS_JSON.search(path) and any(key.lower() == b"name" for key, _ in pairs):
        return True
    return any(key.lower() == b"dns" and _DNS_KEY.fullmatch(value) is not None for key, value in pairs)
