"""Which TCP ports of a box are listened on. Every other one is closed by the box's own kernel and seen by the recorder.

A listener on every port would take all ports from the box's own servers; a redirection rule would need nft and
connection tracking in every box. See docs/decisions/0161-listeners-not-redirection.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caisson_gate.arrival import EXPLICIT_PORT

if TYPE_CHECKING:
    from caisson_gate.policy import Policy

ALWAYS: Final = frozenset({53, 80, 443, EXPLICIT_PORT})
ANY: Final = frozenset({80, 443, 8443})
"""What ``ports = "any"`` and the mode "record" come to."""
MOST: Final = 200
"""As many listeners as one message can carry, and more than anybody needs."""


def ports(policy: Policy) -> list[int]:
    """In order; ValueError when the rules name more than `MOST`."""
    found = set(ALWAYS)
    if policy.network_mode == "record":
        found |= ANY
    for rule in policy.allow:
        found |= ANY if rule.ports is None else rule.ports
    if len(found) > MOST:
        raise ValueError(f"the rules name {len(found)} ports, {MOST} can be listened on; name fewer")
    return sorted(found)
