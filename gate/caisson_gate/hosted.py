"""Tools that a model's provider runs on its own side: web search, fetching, code, remote servers.

A request that offers one of them lets the agent read the web through a host that the policy allows, past every rule
of it. Nothing is refused here: what is found is a finding, with the place in the body where it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_BODY = 16 << 20
"""Of a larger body only the raw bytes are looked at, in bytes."""
MAX_FINDINGS = 32
_DEPTH = 40
KEPT = 1 << 20
"""Bytes kept of the beginning of a body, and as many of its end."""
_HINT = re.compile(
    rb"search|fetch|browser|brows|retriev|execution|interpreter|mcp|url_?context|grounding|sonar|:online|compound|"
    rb"deep-research|\"plugins\"|\"connectors\"|document_library|computer_use|image_generation",
    re.IGNORECASE,
)
"""Without one of these a body need not be parsed."""

_WEB = re.compile(
    r"(?:\$|builtin_|google_|openrouter:)?"
    r"(?:web|x|news|internet|browser|live|tool)[_-]?(?:search|fetch|browser|browsing|retrieval)(?:[_-].*)?",
    re.IGNORECASE,
)
_KINDS = (
    ("web", re.compile(r"google_?search|google_?search_?retrieval|url_?context|bing_grounding", re.IGNORECASE)),
    (
        "code",
        re.compile(r"code_?(?:execution|interpreter)(?:_\d+|_call|_tool_result)?|bash_code_execution.*", re.IGNORECASE),
    ),
    ("remote", re.compile(r"mcp|mcp_(?:toolset|tool_use|call|list_tools)|remote_mcp", re.IGNORECASE)),
    ("files", re.compile(r"file_search(?:_call)?|document_library", re.IGNORECASE)),
    ("computer", re.compile(r"computer_use_preview|image_generation(?:_call)?", re.IGNORECASE)),
)
_FIELDS = {
    "web_search_options": "web",
    "search_parameters": "web",
    "enable_search": "web",
    "search_domain_filter": "web",
    "mcp_servers": "remote",
    "webSearchOptions": "web",
    "google_search": "web",
    "googleSearch": "web",
    "google_search_retrieval": "web",
    "googleSearchRetrieval": "web",
    "url_context": "web",
    "urlContext": "web",
    "code_execution": "code",
    "codeExecution": "code",
    "groundingMetadata": "web",
    "web_search_requests": "web",
    "web_fetch_requests": "web",
    "url_citation": "web",
}
"""Keys that stand for a hosted tool by themselves, in what is asked or in what comes back."""
_TYPED = ("type", "name", "id")
_PLACES = frozenset(
    "tools tool_choice plugins connectors content output delta item content_block function functions".split()  # noqa: SIM905
)
"""Where a `type` names a tool rather than something else."""
_MODEL = re.compile(
    r".*:online|.*-search-preview(?:-.*)?|.*-search-api|sonar.*|compound(?:-mini|-beta.*)?|.*deep-research.*"
)
"""Models that search by themselves."""
_RAW = re.compile(
    rb'"(?:web_search|web_fetch|code_execution|google_search|googleSearch|url_context|urlContext|web_search_options|'
    rb"search_parameters|mcp_servers|web_search_call|server_tool_use|groundingMetadata|code_interpreter|file_search)"
    rb'[A-Za-z0-9_]{0,40}"'
)


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One hosted tool in a body: ``kind`` is web, code, remote, files or computer; ``where`` a JSON pointer."""

    kind: str
    name: str
    where: str


class Overheard:
    """A body as it passes, as far as it is kept to be looked at: its beginning, and its end where it is longer."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first, self._last = bytearray(), b""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of it."""
        room = KEPT - len(self._first)
        if room > 0:
            self._first += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._last = (self._last + chunk)[-KEPT:] if len(chunk) < KEPT else bytes(chunk[-KEPT:])

    def tools(self) -> tuple[HostedTool, ...]:
        """What is found in it."""
        body = bytes(self._first) + self._last
        return hosted_tools(body) if _HINT.search(body) else ()


def speaks_json(content_type: bytes | str | None) -> bool:
    """Whether a body of this type is worth looking at."""
    if content_type is None:
        return False
    text = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    return "json" in text.lower() or "event-stream" in text.lower()


def hosted_tools(body: bytes) -> tuple[HostedTool, ...]:
    """The hosted tools that a request or answer of a model's API speaks of; JSON, JSON lines or an event stream."""
    found: dict[tuple[str, str], HostedTool] = {}
    for document in _documents(body):
        for tool in _walk(document, "", "", 0):
            found.setdefault((tool.kind, tool.name), tool)
            if len(found) >= MAX_FINDINGS:
                return tuple(found.values())
    return tuple(found.values())


def _documents(body: bytes) -> Iterator[Any]:
    if len(body) > MAX_BODY:
        yield {match.decode().strip('"'): None for match in _RAW.findall(body)}
        return
    try:
        yield json.loads(body)
        return
    except (ValueError, RecursionError):
        pass
    readable = 0
    for line in body.splitlines():
        text = line[5:] if line.startswith(b"data:") else line
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            readable += 1
            yield document
    if not readable:  # cut short, or of a form that is not known
        yield {match.decode().strip('"'): None for match in _RAW.findall(body)}


def _walk(value: Any, where: str, place: str, depth: int) -> Iterator[HostedTool]:
    if depth > _DEPTH:
        return
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _walk(inner, f"{where}/{at}", place, depth + 1)
        return
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        spot = f"{where}/{key.replace('~', '~0').replace('/', '~1')[:80]}"
        if key in _FIELDS and inner not in (False, 0, [], ""):
            yield HostedTool(_FIELDS[key], key, spot)
        elif key == "model" and isinstance(inner, str) and not where and _MODEL.fullmatch(inner.rpartition("/")[2]):
            yield HostedTool("web", inner[:80], spot)
        elif isinstance(inner, str) and key in _TYPED and place in _PLACES:
            kind = _kind(inner) if key == "type" or place in ("plugins", "connectors") or _server_side(value) else None
            if kind is not None:
                yield HostedTool(kind, inner[:80], spot)
        elif inner is None and (kind := _kind(key)) is not None:
            yield HostedTool(kind, key[:80], spot)
        if key not in ("input_schema", "parameters", "text", "arguments", "input") or place not in _PLACES:
            yield from _walk(inner, spot, key, depth + 1)


def _server_side(tool: dict[str, Any]) -> bool:
    """Whether a named tool runs at the provider: one that the client describes itself runs with the client."""
    return str(tool.get("type", "")).startswith(("server_tool_use", "builtin_function"))


def _kind(name: str) -> str | None:
    if _WEB.fullmatch(name) or name in ("web", "web-search", "$web_search", "live_search"):
        return "web"
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), None)
