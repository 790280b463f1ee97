"""What a box is answered in place of what it asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass

from caisson_gate.decide import Decision, Reason

HEADER = "x-caisson-decision"
NOT_RECORDED = "not_recorded"
"""Reason of a replay that has no answer for the request. Stable, beside those of `Reason`."""
GATE_FAILED = "gate_failed"
"""Reason when the gate itself broke while it served the request."""
GATE_BUSY = "gate_busy"
"""Reason when the box has as many requests under way as it may have."""
UPSTREAM_FAILED = "upstream_failed"
"""Reason when the upstream could not be reached, or broke off."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer made by the gate."""

    status: int
    rule: str
    reason: str
    detail: str = ""
    verdict: str = "deny"

    @classmethod
    def of(cls, decision: Decision) -> Refusal:
        """A denial by policy."""
        reason = decision.reason or Reason.NOT_ALLOWED
        return cls(decision.status, decision.rule, reason.value, decision.detail)

    def body(self) -> bytes:
        """JSON for a program or a person that looks."""
        content = {"error": "refused by the gate", "rule": self.rule, "reason": self.reason, "detail": self.detail}
        return json.dumps(content).encode() + b"\n"

    def headers(self, length: int) -> list[tuple[bytes, bytes]]:
        """The answer's headers, in lower case as HTTP/2 wants them."""
        mark = f"{self.verdict}; rule={self.rule}; reason={self.reason}"
        return [
            (HEADER.encode(), mark.encode("ascii", "replace")),
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (b"content-length", b"%d" % length),
        ]
