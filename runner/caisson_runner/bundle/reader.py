"""Reading a bundle, and checking it against its manifest. Needs no root, no daemon and no network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zstandard
from caisson_proto.record import Record, RecordError, decode_chunks

from caisson_runner.bundle.canonical import loads, unescape
from caisson_runner.bundle.errors import BundleDamaged, BundleError
from caisson_runner.bundle.writer import DIFF, EVENTS, FORMAT, MANIFEST, check_name, digest, list_files

_CHUNK: Final = 1 << 20
_MAX_WINDOW: Final = 1 << 27


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
    """An opened bundle. ``files`` is the manifest's table: name to sha256 and size."""

    root: Path
    files: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, root: Path, *, verify: bool = False) -> Bundle:
        """Reads the manifest; with ``verify`` every file too."""
        try:
            manifest = loads((root / MANIFEST).read_bytes(), f"{root}/{MANIFEST}")
        except OSError as error:
            raise BundleError(f"{root} is no bundle: {MANIFEST} cannot be read ({error.strerror})") from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise BundleError(f"{root} is no bundle of the form {FORMAT}: use the caisson-run that made it")
        files = manifest.get("files")
        if not isinstance(files, dict) or set(manifest) != {"format", "files"}:
            raise BundleDamaged(f"{MANIFEST} of {root} has no table of files", MANIFEST)
        for name, entry in files.items():
            try:
                check_name(name)
            except BundleError as error:
                raise BundleDamaged(f"{MANIFEST} of {root}: {error}", MANIFEST) from None
            if not _is_entry(entry):
                raise BundleDamaged(f"{MANIFEST} of {root} has no digest and size for {name}", MANIFEST)
        bundle = cls(root, files)
        if verify:
            bundle.verify()
        return bundle

    def verify(self) -> int:
        """How many files are as the manifest says.

        Raises `BundleDamaged` with the first file, by name, that differs, is missing or is not in the manifest."""
        try:
            there = set(list_files(self.root)) - {MANIFEST}
        except BundleDamaged:
            raise
        except BundleError as error:
            raise BundleDamaged(str(error), str(error).partition(" in ")[0]) from None
        for name in sorted(there | set(self.files)):
            if name not in self.files:
                raise BundleDamaged(f"{name} is in the bundle {self.root} but not in its manifest", name)
            if name not in there:
                raise BundleDamaged(f"{name} is missing from the bundle {self.root}", name)
            wanted, found = self.files[name], digest(self.root / name)
            if found["size"] != wanted["size"]:
                raise BundleDamaged(
                    f"{name} was changed: it has {found['size']} bytes, its manifest says {wanted['size']}", name
                )
            if found["sha256"] != wanted["sha256"]:
                raise BundleDamaged(
                    f"{name} was changed: its sha256 is {found['sha256']}, its manifest says {wanted['sha256']}", name
                )
        return len(self.files)

    def has(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise BundleError(f"the bundle {self.root} has no {name}")
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise BundleDamaged(f"{name} in {self.root} cannot be read: {error.strerror}", name) from None

    def json(self, name: str) -> Any:
        return loads(self.read(name), name)

    def records(self) -> Iterator[Record]:
        """The record from its first event on, in bounded memory. A bundle without a witness has none."""
        if EVENTS not in self.files:
            return
        try:
            with (self.root / EVENTS).open("rb") as file:
                yield from decode_chunks(_unzstd(file))
        except (RecordError, zstandard.ZstdError, OSError) as error:
            raise BundleDamaged(f"{EVENTS} cannot be read: {error}", EVENTS) from None

    def changes(self) -> Iterator[StoredChange]:
        """The state diff. A bundle without one has none."""
        if DIFF not in self.files:
            return
        with (self.root / DIFF).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    one = loads(line, f"line {number} of {DIFF}")
                    yield StoredChange(
                        unescape(one["path"]), str(one["how"]), str(one["kind"]), int(one["mode"]), int(one["size"]),
                        str(one["sha256"]), unescape(one["target"]),
                    )  # fmt: skip
                except (BundleError, KeyError, TypeError, ValueError, AttributeError) as error:
                    raise BundleDamaged(f"line {number} of {DIFF} is no change: {type(error).__name__}", DIFF) from None


def _unzstd(file: Any) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(file, read_across_frames=True)
    while chunk := reader.read(_CHUNK):
        yield chunk


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"sha256", "size"}
        and isinstance(entry["sha256"], str)
        and len(entry["sha256"]) == 64
        and type(entry["size"]) is int
        and entry["size"] >= 0
    )
