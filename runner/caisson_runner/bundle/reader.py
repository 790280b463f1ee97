"""Reading a bundle. Needs no root, no daemon and no network."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import Record, RecordError

from caisson_runner.bundle.canonical import MAX_JSON, loads, unescape
from caisson_runner.bundle.digests import Entry
from caisson_runner.bundle.errors import BundleDamaged, BundleError
from caisson_runner.bundle.recording import EVENTS, INDEX, Index, Wanted, read_record
from caisson_runner.bundle.writer import DIFF, FORMAT, MANIFEST, check_name

OLD: Final = ("caisson.bundle/v1",)
"""Forms that were, of unsigned bundles."""
_MAX_LINE: Final = 1 << 20
"""Of one change; a path and a target of 4 KiB each, every byte escaped, are a 30th of it."""


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One line of ``state/diff.jsonl``."""

    path: bytes
    how: str
    kind: str
    mode: int
    size: int
    sha256: str
    target: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle. ``files`` is the manifest's table."""

    root: Path
    files: dict[str, Entry]

    @classmethod
    def open(cls, root: Path, *, verify: bool = False) -> Bundle:
        """Reads the manifest; with ``verify`` the signature and every file too."""
        try:
            manifest = loads(contents(root / MANIFEST), f"{root}/{MANIFEST}")
        except OSError as error:
            raise BundleError(f"{root} is no bundle: {MANIFEST} cannot be read ({error.strerror})") from None
        form = manifest.get("format") if isinstance(manifest, dict) else None
        if form in OLD:
            raise BundleError(f"{root} is a bundle of the older form {form}: read it with the caisson-run that made it")
        if form != FORMAT:
            raise BundleError(f"{root} is no bundle of the form {FORMAT}: use the caisson-run that made it")
        bundle = cls(root, _table(manifest, root))
        if verify:
            bundle.verify()
        return bundle

    def verify(self) -> int:
        """How many files are what was signed. Raises `BundleDamaged` with the first that is not: see `check.verify`."""
        from caisson_runner.bundle.check import verify

        return verify(self.root).files

    def has(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise BundleError(f"the bundle {self.root} has no {name}")
        try:
            return contents(self.root / name)
        except OSError as error:
            raise BundleDamaged(f"{name} in {self.root} cannot be read: {error.strerror}", name) from None

    def json(self, name: str) -> Any:
        return loads(self.read(name), name)

    def index(self) -> Index:
        """Where in the record what lies. Of a bundle without a witness it is empty."""
        if EVENTS not in self.files:
            return Index(())
        return Index.parse(self.json(INDEX))

    def records(self, start: int = 0, end: int | None = None, pid: int | None = None, seq: int = 0) -> Iterator[Record]:
        """The record in its order, one at a time and in bounded memory; only what is wanted of it is unpacked.

        Wanted are events from time ``start`` to before ``end`` (CLOCK_BOOTTIME ns), of process ``pid``, with sequence
        numbers from ``seq`` on. A bundle without a witness has none.
        """
        index = self.index()
        if not index.frames:
            return
        try:
            with regular(self.root / EVENTS).open("rb") as file:
                yield from read_record(file, index, Wanted(start, end, pid, seq))
        except (RecordError, OSError) as error:
            raise BundleDamaged(f"{EVENTS} cannot be read: {error}", EVENTS) from None

    def record(self, seq: int) -> Record | None:
        """The event with this sequence number, by which findings point at it."""
        for frame in self.index().frames:
            if frame.first_seq <= seq <= frame.last_seq:
                for one in self.records(seq=seq, start=frame.first_ns, end=frame.last_ns + 1):
                    if one.seq == seq:
                        return one
        return None

    def changes(self) -> Iterator[StoredChange]:
        """The state diff. A bundle without one has none."""
        if DIFF not in self.files:
            return
        with regular(self.root / DIFF).open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE + 1), b""), 1):
                if len(line) > _MAX_LINE:
                    raise BundleDamaged(f"line {number} of {DIFF} is no change: it has no end", DIFF)
                try:
                    one = loads(line, f"line {number} of {DIFF}")
                    yield StoredChange(
                        unescape(one["path"]), str(one["how"]), str(one["kind"]), int(one["mode"]), int(one["size"]),
                        str(one["sha256"]), unescape(one["target"]),
                    )  # fmt: skip
                except (BundleError, KeyError, TypeError, ValueError, AttributeError) as error:
                    raise BundleDamaged(f"line {number} of {DIFF} is no change: {type(error).__name__}", DIFF) from None


def regular(path: Path) -> Path:
    """The path of a plain file. Raises OSError for a link, a pipe or a device: a bundle of strangers holds none."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return path


def numbers(value: object) -> list[int]:
    """The numbers of a list in a bundle's JSON, which a stranger may have written."""
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


def tables(value: object) -> list[dict[str, Any]]:
    """The tables of such a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def contents(path: Path) -> bytes:
    """A plain file's bytes. Raises OSError as `regular` does, and for one that is too large to be held."""
    with regular(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_JSON:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_JSON} bytes", str(path))
        return file.read(size)


def _table(manifest: dict[str, Any], root: Path) -> dict[str, Entry]:
    files = manifest.get("files")
    if not isinstance(files, dict) or set(manifest) != {"format", "files"}:
        raise BundleDamaged(f"{MANIFEST} of {root} has no table of files", MANIFEST)
    table = {}
    for name, value in files.items():
        try:
            check_name(name)
            table[name] = Entry.parse(value)
        except BundleError as error:
            raise BundleDamaged(f"{MANIFEST} of {root}: {error}", MANIFEST) from None
        except ValueError as error:
            raise BundleDamaged(f"{MANIFEST} of {root} does not say what {name} was: {error}", MANIFEST) from None
    return table
