r"""JSON as bundles hold it, and the escape that carries a box's bytes through it.

One value has one text: keys sorted, two spaces, ASCII, a newline at the end. Bytes become text by `escape`: printable
UTF-8 stays, a backslash is doubled, and every other byte is ``\xNN``. `unescape` gives the same bytes back, so no
path is lost and no control character is ever in a bundle's text.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from caisson_runner.bundle.errors import BundleError

MAX_JSON: Final = 256 << 20

_ESCAPED: Final = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")


def escape(data: bytes) -> str:
    r"""Reversible text of any bytes: ``b"a\\\n\xff"`` is ``a\\\x0a\xff``."""
    if data.isascii() and b"\\" not in data and (text := data.decode("ascii")).isprintable():
        return text
    out = []
    for char in data.decode("utf-8", "surrogateescape"):
        if char == "\\":
            out.append("\\\\")
        elif char.isprintable():
            out.append(char)
        else:
            out.extend(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return "".join(out)


def unescape(text: str) -> bytes:
    """The bytes `escape` was given. Raises ValueError for text it never makes."""
    raw = text.encode("utf-8")
    if b"\\" not in raw:
        return raw
    out = []
    at = 0
    while (slash := raw.find(b"\\", at)) >= 0:
        match = _ESCAPED.match(raw, slash)
        if match is None:
            raise ValueError(f"bad escape in {text[:80]!a}")
        out += [raw[at:slash], bytes([int(match[1], 16)]) if match[1] else b"\\"]
        at = match.end()
    return b"".join([*out, raw[at:]])


def dumps(value: Any) -> bytes:
    """The one text of a JSON value. Raises ValueError for what JSON cannot hold."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"


def dump_line(value: Any) -> bytes:
    """The same on one line, for JSONL."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def loads(text: bytes, what: str) -> Any:
    """Reads strictly: no key twice, no NaN, nothing after the value. ``what`` names the file in the error."""
    if len(text) > MAX_JSON:
        raise BundleError(f"{what} is larger than {MAX_JSON} bytes: not a bundle of ours")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a key appears twice")
        return table

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON number")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what} is not valid JSON: {type(error).__name__}") from None
