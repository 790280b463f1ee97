"""Strict reading of a TOML table: every key is asked for by type, and a key nobody asked for is an error.

tomllib keeps no positions, so the line of a key is looked up in the text when there is something to complain about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from caisson_gate.errors import PolicyError

T = TypeVar("T")

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(?:#.*)?")


class Document:
    """Where a text comes from, for messages that name file, line and key."""

    def __init__(self, source: str, text: str) -> None:
        self.source, self.text = source, text

    def line(self, table: str, key: str) -> int:
        """The line of a key of `table` (such as `allow[2]`, "" for the top); of its header if unknown, else 0."""
        counts: dict[str, int] = {}
        current, header = "", 0
        name = re.escape(key)
        wanted = re.compile(rf"""\s*(?:{name}|"{name}"|'{name}')\s*(?:=|\.)""")
        for number, text in enumerate(self.text.splitlines(), 1):
            match = _HEADER.fullmatch(text)
            if match is not None:
                current = match[2].replace(" ", "").replace('"', "").replace("'", "")
                if match[1] == "[[":
                    at = counts[current] = counts.get(current, -1) + 1
                    current = f"{current}[{at}]"
                if current == table or (not table and re.fullmatch(rf"{name}(?:\[0\])?", current)):
                    header = header or number
            elif current == table and key and wanted.match(text):
                return number
        return header

    def error(self, table: str, key: str, problem: str) -> PolicyError:
        """The one-line complaint about a key."""
        where = ".".join(part for part in (table, key) if part)
        return PolicyError(self.source, problem, self.line(table, key), where)


class Reader:
    """One table being read."""

    def __init__(self, document: Document, table: Mapping[str, Any], name: str = "") -> None:
        self.document, self.table, self.name = document, table, name
        self.asked: set[str] = set()

    def wrong(self, key: str, problem: str) -> PolicyError:
        """What to raise about a key."""
        return self.document.error(self.name, key, problem)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        self.asked.add(key)
        return key in self.table

    def get(self, key: str, kind: type[T], what: str) -> T | None:
        """The value of a key, None when absent; a bool is no integer."""
        self.asked.add(key)
        if key not in self.table:
            return None
        value = self.table[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"must be {what}, is {_shown(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string of bounded length."""
        value = self.get(key, str, "a string")
        if value is not None and (len(value) > 1000 or not value.isprintable()):
            raise self.wrong(key, "must be one line of at most 1000 printable characters")
        return default if value is None else value

    def word(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of a few words."""
        value = self.text(key, default)
        if value not in choices:
            raise self.wrong(key, f"must be one of {', '.join(choices)}; is {_shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.get(key, bool, "true or false")
        return default if value is None else value

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """An integer within bounds."""
        value = self.get(key, int, "an integer")
        if value is None:
            return default
        if not least <= value <= most:
            raise self.wrong(key, f"must be from {least} to {most}, is {_shown(value)}")
        return value

    def moment(self, key: str) -> datetime | None:
        """A date with time and offset; one without would mean another moment on another host."""
        self.asked.add(key)
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            kind = "a date" if isinstance(value, date) else _shown(value)
            raise self.wrong(key, f"must be a moment with its offset such as 2025-03-01T00:00:00Z, is {kind}")
        return value.astimezone(UTC)

    def texts(self, key: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """A list of strings, each parsed; a ValueError's message completes "entry … "."""
        values = self.get(key, list, "a list of strings")
        result: list[T] = []
        for value in values or ():
            if not isinstance(value, str) or len(value) > 4000:
                raise self.wrong(key, f"must hold strings only, has {_shown(value)}")
            try:
                result.append(parse(value))
            except ValueError as problem:
                raise self.wrong(key, f"{_shown(value)} {problem}") from None
        return tuple(dict.fromkeys(result))

    def table_at(self, key: str) -> Reader:
        """A table below; an empty one when absent."""
        value = self.get(key, dict, "a table")
        return Reader(self.document, value or {}, f"{self.name}.{key}" if self.name else key)

    def tables(self, key: str) -> tuple[Reader, ...]:
        """An array of tables."""
        values = self.get(key, list, f"an array of tables, written [[{key}]]")
        for value in values or ():
            if not isinstance(value, dict):
                raise self.wrong(key, f"must be an array of tables, written [[{key}]]")
        return tuple(Reader(self.document, value, f"{key}[{at}]") for at, value in enumerate(values or ()))

    def done(self) -> None:
        """Refuse what nobody asked for."""
        for key in self.table:
            if key not in self.asked:
                known = ", ".join(sorted(self.asked))
                raise self.wrong(key, f"unknown key; known here are: {known}")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "…'"
