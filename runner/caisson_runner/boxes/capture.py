"""The final state of a box: streamed out of its holder, digested on the way, compared with the snapshot."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import zstandard

from caisson_runner.boxes.engine import Capture, Change
from caisson_runner.boxes.errors import StateInvalid
from caisson_runner.boxes.holder.state import PROBLEMS, Entry, digest, read
from caisson_runner.boxes.holder.tree import CHUNK


class _Tee(io.RawIOBase):
    """Reads from one stream and writes what passes to another."""

    def __init__(self, source: IO[bytes], sink: Any) -> None:
        self._source = source
        self._sink = sink

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        if self._sink is not None:
            self._sink.write(data)
        return data


def receive(pipe: int, target: Path | None) -> list[Entry]:
    """Read a state tar from a pipe to its end; keep it at ``target``, zstd-compressed, when given. Blocking."""
    with open(pipe, "rb") as source:
        if target is None:
            return _read(source, None)
        with target.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as sink:
            return _read(source, sink)


def _read(source: IO[bytes], sink: Any) -> list[Entry]:
    tee = _Tee(source, sink)
    try:
        return read(tee)  # type: ignore[arg-type]
    finally:
        while tee.read(CHUNK):  # the padding behind the last member, or the rest of a bad stream
            pass


def read_state(path: Path) -> list[Entry]:
    """The entries of a captured state. StateInvalid when it is damaged or no capture."""
    try:
        with zstandard.open(path, "rb") as stream:
            return read(stream)
    except (*PROBLEMS, zstandard.ZstdError, EOFError) as problem:
        raise StateInvalid(f"{path}: {problem}; it is no state a box was captured to") from problem


def state_digest(path: Path) -> str:
    """The canonical digest of a captured state, from the file alone."""
    return digest(read_state(path))


def feed(state: Path | bytes, pipe: int) -> None:
    """Write a captured state, decompressed, into a pipe. Blocking; the reader may stop early."""
    with open(pipe, "wb") as sink:
        opened: IO[bytes]
        if isinstance(state, bytes):
            opened = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(state))
        else:
            opened = zstandard.open(state, "rb")
        with opened as source:
            try:
                while chunk := source.read(CHUNK):
                    sink.write(chunk)
            except BrokenPipeError:
                pass
            except zstandard.ZstdError as problem:
                raise StateInvalid(
                    f"state {state if isinstance(state, Path) else ''}: {problem}; capture it again"
                ) from problem


def changes(entries: Iterable[Entry], before: dict[bytes, Entry]) -> list[Change]:
    """What a writable layer changes of a snapshot, in path order. A file copied up but equal is no change."""
    found: list[Change] = []
    hidden: list[bytes] = []
    mine: set[bytes] = set()
    for entry in entries:
        mine.add(entry.path)
        old = before.get(entry.path)
        if entry.kind == "whiteout":
            if old is not None:
                found.append(_removed(old))
                if old.kind == "dir":
                    hidden.append(entry.path + b"/")
            continue
        if old is not None and old.kind == "dir" and (entry.kind != "dir" or entry.opaque):
            hidden.append(entry.path + b"/")
        plain = entry._replace(opaque=False)
        if old is None or old._replace(opaque=False) != plain:
            how = "added" if old is None else "changed"
            found.append(
                Change(entry.path, how, entry.kind, entry.mode, entry.size, entry.sha256, entry.target)  # type: ignore[arg-type]
            )
    if hidden:
        roofs = tuple(hidden)
        found += [_removed(old) for path, old in before.items() if path.startswith(roofs) and path not in mine]
    return sorted(found, key=lambda change: change.path)


def _removed(old: Entry) -> Change:
    return Change(old.path, "removed", old.kind, old.mode, old.size, old.sha256, old.target)


def summary(target: Path, entries: list[Entry], found: list[Change]) -> Capture:
    """The capture's figures."""
    return Capture(target, digest(entries), len(entries), sum(entry.size for entry in entries), tuple(found))


def partial(target: Path) -> Path:
    """Where a capture is written until it is whole."""
    return target.with_name(f".{target.name}.{os.getpid()}.partial")
