"""Answers that the gate reads whole and changes before the box gets them: package indexes under a time cut-off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mitmproxy import http

    from caisson_gate.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What is served in place of what came."""

    body: bytes
    notes: dict[str, object]


def prepare(exchange: Exchange, request: http.Request) -> None:
    """Before a request goes out: whether its answer has to be read, and then so that it can be."""


def rewrite(exchange: Exchange, response: http.Response) -> None:
    """The whole answer is here."""
