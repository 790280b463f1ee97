"""HTML that cannot be broken out of: everything is escaped on its way in, unless it is `Html` already."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any, Final

from caisson_runner.report.text import printable

VOID: Final = frozenset(("meta", "br", "input", "link"))
"""Elements that have no end."""


class Html(str):
    """Markup that this package made."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def text(value: object) -> Html:
    """Any value as text; control and bidirectional characters become visible escapes, never markup."""
    return Html(html.escape(printable(str(value), 1 << 20), quote=True))


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
