"""Hosted tools of model providers: found in what is asked and what comes back, not where a client has its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from caisson_gate.hosted import MAX_FINDINGS, hosted_tools
from hypothesis import given
from hypothesis import strategies as st

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("web", {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}),
    ("web", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
    ("code", {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}),
    ("remote", {"mcp_servers": [{"type": "url", "url": "https://x.test"}]}),
    ("web", {"tools": [{"type": "web_search"}]}),
    ("web", {"tools": [{"type": "web_search_preview_2025_03_11"}]}),
    ("files", {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}),
    ("code", {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
    ("remote", {"tools": [{"type": "mcp", "server_url": "https://x.test"}]}),
    ("web", {"model": "m", "web_search_options": {}}),
    ("web", {"model": "m-search-preview"}),
    ("web", {"model": "vendor/model:online"}),
    ("web", {"model": "sonar-pro"}),
    ("web", {"plugins": [{"id": "web", "max_results": 1}]}),
    ("web", {"contents": [], "tools": [{"google_search": {}}]}),
    ("web", {"tools": [{"googleSearch": {}}]}),
    ("web", {"tools": [{"urlContext": {}}]}),
    ("code", {"tools": [{"codeExecution": {}}]}),
    ("web", {"search_parameters": {"mode": "auto"}}),
    ("web", {"connectors": [{"id": "web-search"}]}),
    ("web", {"parameters": {"enable_search": True}}),
    ("web", {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}, "name": "$web_search"}]}),
]


@pytest.mark.parametrize(("kind", "request_body"), ASKED)
def test_a_request_that_offers_a_hosted_tool_is_found(kind: str, request_body: dict[str, Any]) -> None:
    found = hosted_tools(json.dumps(request_body).encode())
    assert kind in {tool.kind for tool in found}
    assert all(tool.where.startswith("/") for tool in found)


CAME = [
    b'{"content": [{"type": "server_tool_use", "name": "web_search", "input": {"query": "q"}}]}',
    b'{"content": [{"type": "web_search_tool_result", "content": []}]}',
    b'{"output": [{"type": "web_search_call", "status": "completed"}]}',
    b'event: x\ndata: {"content_block": {"type": "server_tool_use", "name": "web_fetch"}, "index": 1}\n\n',
    b'data: {"item": {"type": "web_search_call"}}\n\ndata: [DONE]\n\n',
    b'{"candidates": [{"groundingMetadata": {"webSearchQueries": ["q"]}}]}',
    b'{"usage": {"server_tool_use": {"web_search_requests": 2}}}',
]


@pytest.mark.parametrize("body", CAME)
def test_an_answer_that_used_one_is_found(body: bytes) -> None:
    assert "web" in {tool.kind for tool in hosted_tools(body)}


OWN = [
    {"tools": [{"type": "function", "function": {"name": "web_search", "parameters": {"type": "object"}}}]},
    {"tools": [{"name": "web_search", "description": "the client's own", "input_schema": {"type": "object"}}]},
    {"tools": [{"type": "custom", "name": "fetch"}]},
    {"tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "e"}]},
    {"tools": [{"name": "s", "input_schema": {"properties": {"google_search": {"type": "string"}}}}]},
    {"messages": [{"role": "user", "content": "use web_search and google_search"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": '{"tools":[{"type":"web_search"}]}'}]}]},
    {"usage": {"server_tool_use": {"web_search_requests": 0}}},
    {"model": "model-4", "enable_search": False},
    {"input": "x", "type": "web_search"},
]


@pytest.mark.parametrize("request_body", OWN)
def test_a_clients_own_tools_and_words_are_none(request_body: dict[str, Any]) -> None:
    assert hosted_tools(json.dumps(request_body).encode()) == ()


def test_a_body_that_is_cut_short_is_still_looked_at() -> None:
    body = json.dumps({"tools": [{"type": "web_search_20250305"}], "messages": []}).encode()[:-4]
    assert [tool.kind for tool in hosted_tools(body)] == ["web"]


def test_no_body_makes_more_than_so_many_findings_or_goes_deeper_than_so_far() -> None:
    many = {"tools": [{"type": f"web_search_{at}"} for at in range(1000)]}
    assert len(hosted_tools(json.dumps(many).encode())) == MAX_FINDINGS
    deep = b'{"tools":' + b'[{"x":' * 5000 + b"1" + b"}]" * 5000 + b"}"
    assert hosted_tools(deep) == ()
    assert hosted_tools(b"[" * 200_000) == ()


@given(st.binary(max_size=200))
def test_any_body_is_looked_at_without_an_error(body: bytes) -> None:
    hosted_tools(body)
