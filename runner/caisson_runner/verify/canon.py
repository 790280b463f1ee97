"""Canonical JSON: the only form in which a value crosses a room's wall, and the form in which values are compared.

Keys sorted, no spaces, ASCII; no duplicate key, no NaN or infinity, nothing nested deeper than `MAX_DEPTH`.
`true` is not `1` and `1` is not `1.0`, because their text differs. Tuples arrive as lists; sets, bytes and other
objects do not cross at all.
"""

from __future__ import annotations

import json
import math
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

MAX_DEPTH = 64
MAX_MESSAGE = 1 << 20
"""Bytes of one line on a pipe, its newline included."""


class NotCanonical(ValueError):
    """The text or the value is none that may cross."""


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise NotCanonical("a key appears twice")
    return table


def _refuse(constant: str) -> Value:
    raise NotCanonical(f"{constant} is no JSON number")


def _check(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if value is None or kind in (bool, int):
        return
    if kind is str:
        assert isinstance(value, str)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotCanonical("a string holds half a surrogate pair") from None
        return
    if kind is float:
        assert isinstance(value, float)
        if not math.isfinite(value):
            raise NotCanonical("a number is not finite")
        return
    if isinstance(value, list) and kind is list:
        for entry in value:
            _check(entry, depth + 1)
        return
    if isinstance(value, dict) and kind is dict:
        for key, entry in value.items():
            if type(key) is not str:
                raise NotCanonical(f"a key is a {type(key).__name__}, not a string")
            _check(key, depth + 1)
            _check(entry, depth + 1)
        return
    raise NotCanonical(f"a {kind.__name__} cannot cross")


def dumps(value: Value) -> bytes:
    """The one text of a value, without newline. Raises NotCanonical."""
    _check(value)
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (ValueError, RecursionError) as failure:  # an int beyond the interpreter's digit limit
        raise NotCanonical(str(failure)) from None


def loads(text: bytes) -> Value:
    """Read one value strictly, whoever wrote it. Raises NotCanonical, never anything else."""
    if len(text) > MAX_MESSAGE:
        raise NotCanonical(f"longer than {MAX_MESSAGE} bytes")
    try:
        value: Value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except NotCanonical:
        raise
    except (ValueError, RecursionError) as failure:
        raise NotCanonical(f"no JSON: {type(failure).__name__}") from None
    _check(value)
    return value


def same(one: Value, other: Value) -> bool:
    """Whether two values have the same canonical text. Raises NotCanonical."""
    return dumps(one) == dumps(other)
