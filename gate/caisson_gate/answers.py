"""The time cut-off of one box: which requests to an index may go out, and what of its answers comes in.

An index page is read whole and served as it was at the cut-off. A package's file passes if a page that this box got
listed it; a file that nobody dated does not. So a newer version can neither be seen nor be guessed by its address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from caisson_gate.indexes import SIMPLE_JSON, Page, Undated, file_key, npm_page, python_page
from caisson_gate.policy import Policy
from caisson_gate.request import Decision, Reason

DROPPED_HEADERS = frozenset({b"accept-encoding", b"range", b"if-none-match", b"if-modified-since", b"if-range"})
"""Of a request whose answer is read: it must come whole, now, and uncompressed."""
MAX_FILES = 1_000_000
"""A box that was shown more files than this gets no further pages."""

_PYTHON_FILE = re.compile(
    rb"\.(?:whl|zip|egg|exe|msi|rpm|deb|dmg|tgz|metadata|asc|sig|provenance|tar(?:\.[a-z0-9]+)?)$", re.I
)


class Plan(Enum):
    """What to do with a request to an index."""

    PASS = "pass"  # noqa: S105
    READ = "read"
    """Send it, read its whole answer, and serve what `CutOff.answer` makes of it."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Planned:
    """``accept``, where given, is the Accept header to send in place of the client's. ``detail``: why it is refused."""

    plan: Plan
    accept: bytes | None = None
    as_html: bool = False
    detail: str = ""

    @property
    def reason(self) -> Reason | None:
        """The code of a refusal."""
        return Reason.UNDATED if self.plan is Plan.REFUSE else None


_PASS = Planned(Plan.PASS)


class CutOff:
    """Knows which files this box may have. One for each box; not shared."""

    def __init__(self, cutoff: datetime, undated: bool) -> None:
        """``undated``: let pass, recorded, what has no date."""
        self._cutoff, self._undated = cutoff, undated
        self._files: set[bytes] = set()

    @classmethod
    def of(cls, policy: Policy) -> CutOff | None:
        """The policy's, None when it has none."""
        return None if policy.cutoff is None else cls(policy.cutoff, policy.undated == "allow-recorded")

    def plan(self, decision: Decision, accept: bytes | None) -> Planned:
        """What to do with an allowed request, by its canonical host, port and path."""
        index, path = decision.index, decision.path
        if index == "none" or decision.host is None:
            return _PASS
        if file_key(decision.host.text, decision.port, path) in self._files:
            return _PASS
        if index == "pypi" and not _PYTHON_FILE.search(path) and not path.rstrip(b"/").endswith(b"/simple"):
            wants_json = accept is not None and b"+json" in accept
            if path.endswith(b"/json"):
                return Planned(Plan.READ, b"application/json")
            return Planned(Plan.READ, SIMPLE_JSON.encode(), as_html=not wants_json)
        if index == "npm" and b"/-/" not in path:
            return Planned(Plan.READ, b"application/json")
        if self._undated:
            return _PASS
        detail = f"nothing says when this was made, and the cut-off is {self._cutoff:%Y-%m-%d}"
        return Planned(Plan.REFUSE, detail=detail)

    def answer(self, decision: Decision, planned: Planned, scheme: str, body: bytes) -> Page:
        """What to serve of a read answer (status 200). Undated when nothing of it may be served."""
        assert decision.host is not None
        url = f"{scheme}://{decision.host.authority}:{decision.port}{decision.path.decode('ascii')}"
        try:
            if decision.index == "npm":
                page = npm_page(body, url, self._cutoff, self._undated)
            else:
                page = python_page(body, url, self._cutoff, self._undated, planned.as_html)
        except Undated:
            if self._undated:
                return Page(body, "", 0, 0, frozenset())  # as it came
            raise
        if len(self._files) + len(page.files) > MAX_FILES:
            raise Undated("this box was shown more files than are kept in mind")
        self._files |= page.files
        return page
