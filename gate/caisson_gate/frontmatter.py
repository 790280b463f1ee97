"""The `network` key of a workflow's YAML front matter, without a YAML library: the few shapes it is written in.

Anything else of YAML below that key (anchors, tags, block strings, several documents) is refused rather than guessed.
"""

from __future__ import annotations

import re
from typing import Any

from caisson_gate.errors import PolicyError

_PAIR = re.compile(r"""(?P<key>[A-Za-z][\w-]*)\s*:(?:\s+(?P<value>.*))?""")


def network_of(data: bytes, source: str) -> Any:
    """What stands at `network:`: a string, a table of strings, lists and tables, or None without the key."""
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise PolicyError(source, "is not UTF-8") from None
    if not lines or lines[0].strip() != "---":
        raise PolicyError(source, "has no front matter: its first line is not ---", 1)
    for number, line in enumerate(lines[1:], 2):
        if line.strip() in ("---", "..."):
            return None
        match = _PAIR.fullmatch(_bare(line))
        if match is not None and match["key"] == "network" and not line[:1].isspace():
            block = []
            for at, below in enumerate(lines[number:], number + 1):
                if _bare(below).strip() and not below[:1].isspace():
                    break
                if _bare(below).strip():
                    block.append((at, _bare(below)))
            if match["value"]:
                return _scalar(match["value"], source, number)
            return _table(block, source) if block else {}
    raise PolicyError(source, "has front matter that does not end; close it with ---")


def _bare(line: str) -> str:
    """Without a comment; a # inside quotes stays."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _table(block: list[tuple[int, str]], source: str) -> dict[str, Any]:
    """The mapping of these lines, which all belong to it."""
    table: dict[str, Any] = {}
    depth = _indent(block[0][1])
    at = 0
    while at < len(block):
        number, line = block[at]
        match = _PAIR.fullmatch(line.strip())
        if "\t" in line or _indent(line) != depth or match is None or match["key"] in table:
            raise PolicyError(
                source, "is not in a form that is read here; write key: value, lists by - or [a, b]", number
            )
        at += 1
        inner = []
        while at < len(block) and (_indent(block[at][1]) > depth or _is_item(block[at][1], depth)):
            inner.append(block[at])
            at += 1
        if match["value"]:
            if inner:
                raise PolicyError(source, "has a value and more below it", number)
            table[match["key"]] = _scalar(match["value"], source, number)
        elif inner and inner[0][1].lstrip().startswith("- "):
            table[match["key"]] = [_item(line, source, number) for number, line in inner]
        else:
            table[match["key"]] = _table(inner, source) if inner else None
    return table


def _is_item(line: str, depth: int) -> bool:
    return _indent(line) == depth and line.lstrip().startswith("- ")


def _item(line: str, source: str, number: int) -> Any:
    if not line.lstrip().startswith("- "):
        raise PolicyError(source, "is no entry of the list above it", number)
    return _scalar(line.lstrip()[2:].strip(), source, number)


def _scalar(text: str, source: str, number: int) -> Any:
    text = text.strip()
    if text == "{}":
        return {}
    if text.startswith("[") and text.endswith("]"):
        parts = [part.strip() for part in text[1:-1].split(",")]
        return [_scalar(part, source, number) for part in parts if part]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1] and "\\" not in text:
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if not text or text[0] in "&*!|>{[\"'%@`?:-,":
        raise PolicyError(source, f"{text!r:.60} is not in a form that is read here; quote it", number)
    return text
