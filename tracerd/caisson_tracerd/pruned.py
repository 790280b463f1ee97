"""Of the kernel's types, those that a text needs: a thirtieth of them, so that the compiler has less to read.

A declaration is kept when its name occurs in the text or in one that is kept. A structure that only pointers point to
is declared and left open: the programs never look into one, their offsets are numbers. What is kept is kept to the
letter; where something is missing after all, the text does not compile, and the loader gives the compiler everything.

Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORD = re.compile(r"[A-Za-z_]\w*")
_TAG = re.compile(r"\b(struct|union|enum)\s+(\w+)\s*(\*?)")
_OPEN = re.compile(r"(struct|union|enum) (\w+);")
_BODY = re.compile(r"(struct|union|enum)(?: (\w+))? \{")
_FUNCTION = re.compile(r"(?:\(\*+(\w+)\)\s*|\b(\w+))\(")
_ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\)\)?|\[.*")
_CONSTANT = re.compile(r"^\t(\w+)", re.MULTILINE)


def needed(types: str, text: str, more: str = "") -> str:
    """What ``text`` needs of ``types``, which is bpftool's C; ``more``: headers whose own needs count too."""
    declarations = [one for one in _declarations(types) if not _OPEN.fullmatch(one)]
    places: dict[str, int] = {}
    for place, one in enumerate(declarations):
        for name in _defines(one):
            places.setdefault(name, place)
    kept: set[int] = set()
    asked: set[str] = set()
    waiting = _uses(text) | _uses(more)
    while waiting:
        name = waiting.pop()
        asked.add(name)
        at = places.get(name)
        if at is not None and at not in kept:
            kept.add(at)
            waiting |= _uses(declarations[at]) - asked
    body = "\n\n".join(declarations[at] for at in sorted(kept))
    tags = sorted({f"{tag[1]} {tag[2]};" for tag in _TAG.finditer(body + text) if tag[1] != "enum"})
    return "\n".join([*tags, "", body, ""])


def _declarations(types: str) -> Iterator[str]:
    """Everything between one closing semicolon of the outermost level and the next; no preprocessor lines."""
    found: list[str] = []
    depth = 0
    for line in types.splitlines():
        if not found and (not line or line[0] == "#"):
            continue
        found.append(line)
        depth += line.count("{") - line.count("}")
        if not depth and line.endswith(";"):
            yield "\n".join(found)
            found = []


def _defines(declaration: str) -> list[str]:
    """The names a declaration brings: ``struct x``, a typedef's, the constants of an enum."""
    body = _BODY.search(declaration)
    found = _CONSTANT.findall(declaration) if body and body[1] == "enum" else []
    if declaration.startswith("typedef"):
        tail = _ATTRIBUTE.sub("", declaration.rsplit("}", 1)[-1])
        function = _FUNCTION.search(tail)
        words = [function[1] or function[2]] if function else _WORD.findall(tail)[-1:]
        return found + words
    return [*found, f"{body[1]} {body[2]}"] if body and body[2] else found


def _uses(text: str) -> set[str]:
    """Every word, and every structure that is more than pointed to."""
    found = set(_WORD.findall(text))
    found.update(f"{tag[1]} {tag[2]}" for tag in _TAG.finditer(text) if tag[1] == "enum" or not tag[3])
    return found
