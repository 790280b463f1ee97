"""Bodies by content: hashed while they pass, kept under their digest in ``bodies/``, each once.

A body is written to a part file and gets its name when it is whole, so a file named by a digest has that content. What
is kept has passed the redactor first, and the digest is that of what was kept. Memory stays flat whatever the size.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_gate.credentials import Redactor

SPILL: Final = 1 << 16
"""Larger bodies go to a part file while they pass."""
MAX_KEPT: Final = 4 << 30
"""Of one store, in bytes: a box must not fill the disk. What is beyond it is hashed and not kept."""


@dataclass(frozen=True, slots=True)
class Body:
    """One body that passed."""

    sha256: str
    length: int
    kept: bool
    redacted: bool = False
    """A credential was masked in it; digest and file are of the masked form."""
    whole: bool = True
    """False when it was cut off."""


NOTHING: Final = Body(hashlib.sha256(b"").hexdigest(), 0, False)


class BodyStore:
    """One ``bodies/`` folder."""

    def __init__(self, folder: Path, redactor: Redactor, *, keep: bool = True, limit: int = MAX_KEPT) -> None:
        self.folder = folder
        self._redactor = redactor
        self._keep = keep
        self._left = limit
        self._numbers = itertools.count()
        if keep:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)

    def start(self) -> Recording:
        """For one body that is about to pass."""
        return Recording(self, self._redactor)

    def put(self, data: bytes) -> Body:
        """One body that is whole already."""
        recording = self.start()
        recording.write(data)
        return recording.finish()

    def path(self, sha256: str) -> Path:
        """Where a kept body lies."""
        return self.folder / sha256

    def part(self) -> Path | None:
        """A name for a body that is still passing; None when bodies are not kept."""
        return self.folder / f".part-{os.getpid()}-{next(self._numbers)}" if self._keep else None

    def grant(self, size: int) -> bool:
        """Whether ``size`` more bytes may be kept."""
        if not self._keep or size > self._left:
            return False
        self._left -= size
        return True

    def take_back(self, size: int) -> None:
        """Bytes that were granted and are not on disk after all."""
        self._left += size


class Recording:
    """One body on its way into the store. Not finished means gone: its part file is removed by `drop`."""

    __slots__ = ("_buffer", "_fd", "_granted", "_hash", "_part", "_redact", "_store", "kept", "length")

    def __init__(self, store: BodyStore, redactor: Redactor) -> None:
        self._store = store
        self._redact = redactor.stream() if redactor else None
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._part: Path | None = None
        self._fd = -1
        self._granted = 0
        self.length = 0
        self.kept = True

    def write(self, chunk: bytes) -> None:
        """The next bytes, in order."""
        if self._redact is not None:
            chunk = self._redact.feed(chunk)
        if chunk:
            self._add(chunk)

    def finish(self, *, whole: bool = True) -> Body:
        """The end. The body's file, if it is kept, is there when this returns."""
        if self._redact is not None and (rest := self._redact.finish()):
            self._add(rest)
        sha256 = self._hash.hexdigest()
        redacted = self._redact is not None and self._redact.changed
        if self.length == 0:
            return Body(sha256, 0, False, redacted, whole)
        if self.kept:
            self._settle(self._store.path(sha256))
        return Body(sha256, self.length, self.kept, redacted, whole)

    def drop(self) -> None:
        """Keep nothing of it. Idempotent, and harmless after `finish`."""
        self.kept = False
        self._buffer.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._part is not None:
            self._part.unlink(missing_ok=True)
            self._part = None
        self._store.take_back(self._granted)
        self._granted = 0

    def _add(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self.length += len(chunk)
        if not self.kept:
            return
        if not self._store.grant(len(chunk)):
            self.drop()
            return
        self._granted += len(chunk)
        try:
            if self._fd < 0 and len(self._buffer) + len(chunk) <= SPILL:
                self._buffer += chunk
            else:
                self._spill(chunk)
        except OSError:  # a full disk: the traffic goes on, the record says that the body is missing
            self.drop()

    def _spill(self, chunk: bytes) -> None:
        if self._fd < 0:
            self._part = self._store.part()
            assert self._part is not None
            self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            _write(self._fd, self._buffer)
            self._buffer.clear()
        _write(self._fd, chunk)

    def _settle(self, target: Path) -> None:
        try:
            if target.exists():
                self.drop()
                self.kept = True
                return
            if self._fd < 0:
                self._spill(b"")
            os.close(self._fd)
            self._fd = -1
            assert self._part is not None
            self._part.rename(target)
            self._part = None
            self._granted = 0
        except OSError:
            self.drop()


def _write(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
