"""Making a bundle: files first, then what signs them, and the name only when everything is on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol

import zstandard
from caisson_proto.record import RecordError

from caisson_runner.bundle.canonical import dump_line, dumps, escape, loads
from caisson_runner.bundle.digests import entry_of
from caisson_runner.bundle.dsse import sign
from caisson_runner.bundle.errors import BundleDiskFull, BundleError
from caisson_runner.bundle.keys import Signer, own
from caisson_runner.bundle.recording import EVENTS, INDEX, Index, write_record
from caisson_runner.bundle.statement import SEAL, STATEMENT, seal, statement

MANIFEST: Final = "manifest.json"
FORMAT: Final = "caisson.bundle/v2"
RUN: Final = "run.json"
VERDICT: Final = "verdict.json"
COVERAGE: Final = "coverage.json"
DIFF: Final = "state/diff.jsonl"
UPPER: Final = "state/upper.tar.zst"

_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 16


class Change(Protocol):
    """One path that differs from the snapshot, as an engine reports it: no leading slash."""

    @property
    def path(self) -> bytes: ...
    @property
    def how(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def mode(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def target(self) -> bytes: ...


class BundleWriter:
    """Writes ``target`` by way of ``target.partial``; a bundle that has its name is whole.

    A synchronous context manager: leaving it closes the bundle, leaving it by an exception throws the partial one
    away. A partial bundle left by a killed runner is replaced; one that a living runner works on is refused. It is
    signed by ``signer``, without one by this store's own key.
    """

    def __init__(self, target: Path, signer: Signer | None = None) -> None:
        self.target = target
        self.signer = signer if signer is not None else own()
        self.partial = target.with_name(target.name + ".partial")
        if os.path.lexists(target):
            raise BundleError(f"{target} exists already: name a new place or remove it")
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(f"cannot write a bundle at {target}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BundleError(f"{self.partial} is being written by another run: name another place") from None
        self._records = 0
        self._open = True
        for left in self.partial.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._open:
                self.close()
        except OSError as failure:
            error = failure
        finally:
            self.abort()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BundleDiskFull(f"no room left for the bundle {self.target}: free some, or name another place")
        if kind is None and error is not None:
            raise error

    def add_bytes(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)

    def add_json(self, name: str, value: Any) -> None:
        """``value`` in canonical form. Bytes from a box go through `escape` first."""
        self.add_bytes(name, dumps(value))

    def add_file(self, name: str, source: Path, *, compress: bool = False) -> None:
        """A copy of ``source``; with ``compress`` as a zstd frame."""
        with source.open("rb") as read, self.create(name) as file:
            if compress:
                zstandard.ZstdCompressor(level=3, write_checksum=True).copy_stream(read, file)
            else:
                shutil.copyfileobj(read, file, _CHUNK)

    def add_events(self, events: Path) -> None:
        """The canonical record, as a witness hands it over, and its index."""
        with events.open("rb") as read, self.create(EVENTS) as file:
            try:
                index = write_record(iter(lambda: read.read(_CHUNK), b""), file)
            except RecordError as error:
                raise BundleError(f"the record {events} cannot be kept: {error}") from None
        self.add_bytes(INDEX, index.dumps())
        self._records = index.records

    def adopt(self, index: Index) -> None:
        """Says what the record holds that was copied, with its index, from another bundle."""
        self._records = index.records

    def add_changes(self, changes: Iterable[Change]) -> None:
        """The state diff, one change a line, sorted by path."""
        with self.create(DIFF) as file:
            for one in sorted(changes, key=lambda change: change.path):
                file.write(dump_line(change_json(one)))

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """A file of the bundle to write into."""
        with self.path(name).open("xb") as file:
            yield file

    def path(self, name: str) -> Path:
        """Where a file of the bundle goes, for those who write it themselves (``state/upper.tar.zst``)."""
        check_name(name)
        if not self._open:
            raise BundleError(f"the bundle {self.target} is closed")
        if name in (MANIFEST, STATEMENT, SEAL):
            raise BundleError(f"{name} is written by close()")
        path = self.partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> Path:
        """Writes and signs the manifest of everything that is there, and gives the bundle its name."""
        _prune(self.partial)
        files = {name: entry_of(self.partial / name) for name in list_files(self.partial)}
        manifest = dumps({"format": FORMAT, "files": {name: entry.to_json() for name, entry in files.items()}})
        payload = statement(files, manifest, self._table, self.signer.public, self._records)
        envelope = sign(payload, self.signer).dumps()
        for name, text in ((MANIFEST, manifest), (STATEMENT, envelope), (SEAL, seal(envelope))):
            with (self.partial / name).open("xb") as file:
                file.write(text)
        _sync_tree(self.partial)
        if os.path.lexists(self.target):
            raise BundleError(f"{self.target} was made meanwhile: the partial bundle is {self.partial}")
        self.partial.rename(self.target)
        _sync(self.target.parent)
        self._release()
        return self.target

    def _table(self, name: str) -> Mapping[str, Any]:
        """A JSON file that was added, for the statement."""
        path = self.partial / name
        value = loads(path.read_bytes(), name) if path.is_file() else {}
        return value if isinstance(value, dict) else {}

    def abort(self) -> None:
        """Throws the partial bundle away, if it was not closed."""
        if self._open:
            shutil.rmtree(self.partial, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        self._open = False
        with suppress(OSError):
            os.close(self._lock)


def change_json(change: Change) -> dict[str, Any]:
    """One change as ``state/diff.jsonl`` holds it, with paths in the bundle's reversible escape."""
    return {
        "path": escape(change.path),
        "how": change.how,
        "kind": change.kind,
        "mode": change.mode,
        "size": change.size,
        "sha256": change.sha256,
        "target": escape(change.target),
    }


def check_name(name: str) -> None:
    """Names in a bundle are plain relative ASCII paths: nothing that leaves it, nothing hidden."""
    parts = PurePosixPath(name).parts
    plain = name.isascii() and name.isprintable() and "\\" not in name and name == "/".join(parts)
    if not plain or not parts or name.startswith("/") or any(part.startswith(".") for part in parts):
        raise BundleError(f"{name[:100]!a} cannot be the name of a file in a bundle")


def list_files(root: Path) -> list[str]:
    """Every file below ``root`` by its name in the bundle, sorted. Anything but files and folders is an error."""
    found: list[str] = []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    found.append(path.relative_to(root).as_posix())
                else:
                    name = escape(os.fsencode(path.relative_to(root)))
                    raise BundleError(f"{name} in {root} is neither a file nor a folder: remove it")
    return sorted(found)


def _prune(root: Path) -> None:
    """Folders that were made for a file that never came."""
    for folder, _folders, _files in os.walk(root, topdown=False):
        if Path(folder) != root:
            with suppress(OSError):
                Path(folder).rmdir()


def _sync_tree(root: Path) -> None:
    """Everything below ``root`` is on the disk afterwards. All at once: what waits together is written together."""
    paths = [root / name for name in list_files(root)]
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
    with ThreadPoolExecutor(min(len(paths), _AT_ONCE)) as pool:
        list(pool.map(_sync, [*paths, *folders]))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
