"""HTML that cannot be broken out of: everything is escaped on its way in, unless it is `Html` already."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from caisson_runner.report.text import printable

MAX_ROWS: Final = 400
"""Of one table of a page; how many more there are stands below it."""

VOID: Final = frozenset(("meta", "br", "input", "link"))
"""Elements that have no end."""


_LONGEST: Final = 10_000
"""Characters of one text; no string of a stranger makes a page of its own."""


class Html(str):
    """Markup that this package made."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def text(value: object) -> Html:
    """Any value as text; control and bidirectional characters become visible escapes, never markup."""
    return Html(html.escape(printable(str(value), _LONGEST), quote=True))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """One element. Of an attribute's name a last ``_`` is cut and others become ``-``; None and False leave it out."""
    parts = ["<", name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(" " + key.removesuffix("_").replace("_", "-"))
        if value is not True:
            parts.append(f'="{text(value)}"')
    parts.append(">")
    if name not in VOID:
        parts += [_inner(child) for child in children]
        parts.append(f"</{name}>")
    return Html("".join(parts))


def joined(*children: Child) -> Html:
    """Several, without an element around them."""
    return Html("".join(_inner(child) for child in children))


def _inner(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return text(child)
    return "".join(_inner(one) for one in child)


def code(value: object, limit: int = 300) -> Html:
    """Something of a box: in a fixed face, always left to right, cut after ``limit`` characters."""
    return tag("code", printable(str(value), limit))


def data_script(identity: str, value: Any) -> Html:
    """JSON in a script element. No ``<``, ``>`` or ``&`` is left in it, so nothing in it ends the element."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        body = body.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{text(identity)}">{body}</script>')


def packed_script(identity: str, base64: str) -> Html:
    """Base64 in a script element that no browser runs. Raises ValueError for anything else."""
    if not base64.isascii() or set(base64) - _BASE64:
        raise ValueError("not base64")
    return Html(f'<script type="text/plain" id="{text(identity)}">{base64}</script>')


_BASE64: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], **attributes: object) -> Html:
    """A table in a box of its own that scrolls sideways where it is too wide; cells know their column on a phone."""
    names = [joined(one) for one in head]
    body = [tag("tr", [_cell(name, cell) for name, cell in zip(names, row, strict=True)]) for row in rows]
    columns = [tag("th", name, scope="col") for name in names]
    return tag("table", tag("thead", tag("tr", columns)), tag("tbody", body), **attributes)


def _cell(name: Html, cell: Child) -> Html:
    inner = _inner(cell)
    if not inner:
        return Html("<td></td>")
    return Html(f'<td data-column="{name}"><div>{inner}</div></td>')


def said(passed: bool | None) -> Html:
    """PASS, fail or a dash, for a person and a screen reader."""
    if passed is None:
        return tag("span", "–", class_="said none", aria_label="no verdict")
    return tag("span", "PASS" if passed else "fail", class_="said " + ("good" if passed else "bad"))


def wide(head: Sequence[str], rows: Iterable[Iterable[Child]], identity: str | None = None) -> Html:
    """A table that scrolls by itself, also by keyboard, and becomes cards on a phone."""
    return tag("div", table(head, rows), class_="wide", id=identity, tabindex="0", role="group", aria_label="table")


def rest(count: int, limit: int = MAX_ROWS) -> Html | None:
    """How many rows a table of the page leaves out; None when none."""
    return tag("p", f"… and {count - limit:,} more, which the bundle has", class_="quiet") if count > limit else None


def spaced(children: Iterable[Child]) -> list[Child]:
    """With blanks between them."""
    return [[child, " "] for child in children]
