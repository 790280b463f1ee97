"""Strict reading of TOML: every value is asked for by name and type, and what nobody asked for is known."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from caisson_runner.tasks.errors import Malformed

MAX_FILE = 1 << 20  # bytes; a task or suite file beyond this is not one


def _kind(value: object) -> str:
    names = {bool: "true/false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, dict) else type(value).__name__)


def line_of(source: str, path: Sequence[str | int]) -> int | None:
    """The line where a key is set, as far as a look at table headers and `key =` can tell (1-based)."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return None
    indexes = [part for part in path if isinstance(part, int)]
    header, best = "", None
    seen: dict[str, int] = {}
    dotted = ".".join(names)
    for number, text in enumerate(source.splitlines(), 1):
        if match := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$", text):
            header = re.sub(r"\s*\.\s*", ".", match[1]).replace('"', "")
            seen[header] = seen.get(header, -1) + 1
            if dotted == header and (not indexes or seen[header] == indexes[-1]):
                best = number
        elif match := re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", text):
            key = match[1].replace('"', "").replace("'", "")
            full = f"{header}.{key}" if header else key
            if full == dotted and (not indexes or header == "" or seen.get(header, 0) in indexes):
                return number
    return best


class Table:
    """One TOML table being read. Asking marks a key as known; `unknown()` lists the rest."""

    def __init__(
        self,
        values: Mapping[str, object],
        *,
        file: Path,
        source: str = "",
        path: tuple[str | int, ...] = (),
        error: type[Malformed],
    ) -> None:
        self.values, self.file, self.source, self.path, self.error = values, file, source, path, error
        self.known: set[str] = set()

    @classmethod
    def read(cls, file: Path, error: type[Malformed]) -> Table:
        """Parse a file. Raises `error` with the line when it is no TOML."""
        try:
            with file.open("rb") as stream:
                raw = stream.read(MAX_FILE + 1)
        except OSError as failure:
            raise error(file, "", f"cannot be read: {failure.strerror}") from None
        if len(raw) > MAX_FILE:
            raise error(file, "", f"is larger than {MAX_FILE} bytes")
        try:
            text = raw.decode()
            values = tomllib.loads(text)
        except UnicodeDecodeError as failure:
            raise error(file, "", f"is not UTF-8 (byte {failure.start})") from None
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as failure:
            found = re.search(r"\(at line (\d+), column \d+\)", str(failure))
            reason = re.sub(r"\s*\(at [^)]*\)", "", str(failure)).splitlines()[0]
            raise error(file, "", f"not TOML: {reason}", int(found[1]) if found else None) from None
        return cls(values, file=file, source=text, error=error)

    @classmethod
    def of_schema(cls, file: Path, error: type[Malformed], schema: str) -> Table:
        """The same for a file that must say which schema it follows."""
        table = cls.read(file, error)
        if (said := table.need_text("schema")) != schema:
            raise table.wrong("schema", f"must be {schema!r}, is {said!r}")
        return table

    def name(self, key: str = "") -> str:
        """The dotted name of a key, as shown to a person."""
        parts = [*self.path, *([key] if key else [])]
        return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")

    def wrong(self, key: str, problem: str) -> Malformed:
        """The error for a key of this table."""
        path = (*self.path, key) if key else self.path
        return self.error(self.file, self.name(key), problem, line_of(self.source, path))

    def has(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> object:
        self.known.add(key)
        return self.values.get(key)

    def _typed(self, key: str, wanted: str, fits: Callable[[object], bool]) -> object | None:
        """The value if the key is there (None if not). Raises when it is of another type; TOML has no null."""
        value = self.get(key)
        if key in self.values and not fits(value):
            raise self.wrong(key, f"must be {wanted}, is {_kind(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self._typed(key, "a string", lambda v: isinstance(v, str))
        return default if value is None else str(value)

    def need_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.wrong(key, "is required")
        if not value.strip():
            raise self.wrong(key, "must not be empty")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._typed(key, "true or false", lambda v: isinstance(v, bool))
        return default if value is None else bool(value)

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int | None:
        value = self._typed(key, "a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool))
        if value is None:
            return default
        assert isinstance(value, int)
        if value < least:
            raise self.wrong(key, f"must be {least} or more, is {value}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0) -> float | None:
        value = self._typed(key, "a number", lambda v: isinstance(v, int | float) and not isinstance(v, bool))
        if value is None:
            return default
        assert isinstance(value, int | float)
        if not math.isfinite(value) or value <= above:
            raise self.wrong(key, f"must be finite and more than {above:g}, is {value}")
        return float(value)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str | None:
        value = self.text(key, default)
        if value is not None and value not in choices:
            raise self.wrong(key, f"must be one of {', '.join(choices)}; is {value!r}{near(value, choices)}")
        return value

    def texts(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        value = self._typed(key, "a list of strings", lambda v: isinstance(v, list))
        if value is None:
            return tuple(default)
        assert isinstance(value, list)
        for entry in value:
            if not isinstance(entry, str):
                raise self.wrong(key, f"must be a list of strings, holds {_kind(entry)}")
        return tuple(value)

    def strings(self, key: str) -> dict[str, str]:
        """A table of strings, such as an environment."""
        table = self.table(key)
        if table is None:
            return {}
        for name, value in table.values.items():
            if not isinstance(value, str):
                raise table.wrong(name, f"must be a string, is {_kind(value)}")
        return {name: str(value) for name, value in table.values.items()}

    def table(self, key: str) -> Table | None:
        value = self._typed(key, "a table", lambda v: isinstance(v, dict))
        if value is None:
            return None
        assert isinstance(value, dict)
        return Table(value, file=self.file, source=self.source, path=(*self.path, key), error=self.error)

    def need_table(self, key: str) -> Table:
        table = self.table(key)
        if table is None:
            raise self.wrong(key, "this table is required")
        return table

    def tables(self, key: str) -> tuple[Table, ...]:
        value = self._typed(key, "a list of tables", lambda v: isinstance(v, list))
        if value is None:
            return ()
        assert isinstance(value, list)
        for entry in value:
            if not isinstance(entry, dict):
                raise self.wrong(key, f"must be a list of tables, holds {_kind(entry)}")
        return tuple(
            Table(entry, file=self.file, source=self.source, path=(*self.path, key, index), error=self.error)
            for index, entry in enumerate(value)
        )

    def unknown(self) -> tuple[str, ...]:
        """Dotted names of keys nobody asked for, in the file's order."""
        return tuple(self.name(key) for key in self.values if key not in self.known)

    def finish(self) -> None:
        """Refuse keys nobody asked for; call it when the table has been read."""
        for key in self.values:
            if key not in self.known:
                raise self.wrong(key, f"unknown key{near(key, sorted(self.known))}")


def near(name: str, known: Sequence[str], *, most: int = 3) -> str:
    """`; did you mean a or b?` for a misspelt name, or nothing."""
    matches = difflib.get_close_matches(name, known, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
