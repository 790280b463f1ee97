"""Python values as JSON, in both rooms of a split run. It is sent in front of `mirror` and `split` and only defines.

Only plain values cross, rebuilt from nothing but builtin and standard types; a subclass arrives as its base, so that a
method it overrides (`__eq__`) stays behind. Everything else stays where it is and is named by a number.
"""

import datetime
import decimal
import fractions
import pathlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from collections.abc import Callable
    from typing import Any

MOST_ITEMS = 100_000
DEEPEST = 40
BY_TEXT: "dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]]" = {
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (fractions.Fraction, str, fractions.Fraction),
    "complex": (complex, repr, complex),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "path": (pathlib.PosixPath, str, pathlib.PosixPath),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}
GROUPS = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}


def encode(value: "Any", keep: "Callable[[Any], Any] | None" = None, depth: int = 0) -> "Any":
    """A value's JSON form. `keep` gives the form of what is not plain; without it that raises TypeError."""
    if depth > DEEPEST:
        raise TypeError("nested too deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        text = str.__str__(value)
        return text if text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in text) else {"t": "str", "v": text}
    if isinstance(value, float):
        return {"t": "float", "v": float.__repr__(value)}
    if isinstance(value, dict):
        pairs = [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in dict.items(value)]
        return {"t": "dict", "v": pairs}
    for name, group in GROUPS.items():
        if isinstance(value, group):
            items = list(group.__iter__(value))
            if len(items) > MOST_ITEMS:
                raise TypeError("too many items")
            return {"t": name, "v": [encode(item, keep, depth + 1) for item in items]}
    for name, (kind, write, _) in BY_TEXT.items():
        if type(value) is kind:
            return {"t": name, "v": write(value)}
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist") and depth == 0:
        return encode(value.tolist(), keep, depth + 1)
    if keep is None:
        raise TypeError(f"a {kind.__name__} is not plain")
    return keep(value)


def decode(form: "Any", made: "Callable[[Any], Any] | None" = None) -> "Any":
    """The value of a JSON form. `made` turns the form of what is not plain into something that stands for it."""
    if not isinstance(form, dict):
        return form
    kind = form["t"]
    value: Any = form.get("v")
    if kind == "float":
        return float(value)
    if kind == "str":
        return str(value)
    if kind == "dict":
        return {decode(k, made): decode(v, made) for k, v in value}
    if kind in GROUPS:
        return GROUPS[kind]([decode(item, made) for item in value])
    if kind in BY_TEXT:
        return BY_TEXT[kind][2](value)
    if made is None:
        raise TypeError(f"a {kind} is not plain")
    return made(form)
