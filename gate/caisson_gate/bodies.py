"""Bodies by content: hashed while they pass, kept under their digest in ``bodies/``, each once.

A body is written to a part file and gets its name when it is whole, so a file named by a digest has that content. What
is kept has passed the redactor first, and the digest is that of what was kept. Memory stays flat whatever the size.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from caisson_gate.credentials import Redactor

SPILL: Final = 1 << 18
"""Larger bodies go to a thread and a part file while they pass."""
BATCH: Final = 1 << 20
"""Bytes handed over at once: waking a thread costs as much as hashing some of them."""
PENDING: Final = 4
"""Batches of one body that may wait for their thread."""
MAX_KEPT: Final = 4 << 30
"""Of one store, in bytes: a box must not fill the disk. What is beyond it is hashed and not kept."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


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
    """One body on its way into the store. Not finished means gone: its part file is removed by `drop`.

    A large body is hashed and written by a thread of its own, both of which Python does without its lock, so that one
    box's download holds up no other box; a disk that is slower for long does, once `PENDING` batches wait for it.
    """

    __slots__ = ("_behind", "_buffer", "_granted", "_hash", "_redact", "_store", "kept", "length")

    def __init__(self, store: BodyStore, redactor: Redactor) -> None:
        self._store = store
        self._redact = redactor.stream() if redactor else None
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._behind: _Behind | None = None
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
        redacted = self._redact is not None and self._redact.changed
        if self._behind is not None:
            self.kept = self._behind.end() and self.kept
        sha256 = self._hash.hexdigest()
        if self.length == 0:
            return Body(sha256, 0, False, redacted, whole)
        if self.kept:
            self._settle(self._store.path(sha256))
        if not self.kept:
            self.drop()
        return Body(sha256, self.length, self.kept, redacted, whole)

    def drop(self) -> None:
        """Keep nothing of it. Idempotent, and harmless after `finish`."""
        self.kept = False
        self._buffer.clear()
        if self._behind is not None:
            self._behind.end()
            self._behind.remove()
        self._store.take_back(self._granted)
        self._granted = 0

    def _add(self, chunk: bytes) -> None:
        self.length += len(chunk)
        if self.kept and self._store.grant(len(chunk)):
            self._granted += len(chunk)
        else:
            self.kept = False
        if self._behind is None and len(self._buffer) + len(chunk) <= SPILL:
            self._hash.update(chunk)
            self._buffer += chunk
            return
        if self._behind is None:
            self._behind = _Behind(self._hash, self._store.part() if self.kept else None)
            self._behind.put(bytes(self._buffer), hashed=True)
            self._buffer.clear()
        self._behind.put(chunk, kept=self.kept)

    def _settle(self, target: Path) -> None:
        """Give the body its name."""
        try:
            if target.exists():
                if self._behind is not None:
                    self._behind.remove()
                self._store.take_back(self._granted)
            elif self._behind is not None:
                self._behind.rename(target)
            else:
                part = self._store.part()
                assert part is not None
                part.write_bytes(self._buffer)
                part.rename(target)
            self._granted = 0
        except OSError:  # a full disk: the record says that the body is missing
            self.kept = False
        self._buffer.clear()


class _Behind:
    """Hashes and writes in a thread; `put` waits when too much is pending, so that memory stays flat."""

    def __init__(self, digest: _Hash, part: Path | None) -> None:
        self._digest, self._part = digest, part
        self._room = threading.Semaphore(PENDING)
        self._queue: queue.SimpleQueue[list[tuple[bytes, bool, bool]] | None] = queue.SimpleQueue()
        self._batch: list[tuple[bytes, bool, bool]] = []
        self._size = 0
        self._good = part is not None
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="body", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes, *, hashed: bool = False, kept: bool = True) -> None:
        """The next bytes. ``hashed``: only to be written; not ``kept``: only to be hashed."""
        self._batch.append((chunk, hashed, kept))
        self._size += len(chunk)
        if self._size >= BATCH:
            self._hand_over()

    def _hand_over(self) -> None:
        self._room.acquire()
        self._queue.put(self._batch)
        self._batch, self._size = [], 0

    def end(self) -> bool:
        """All that was put is done; whether the file is whole. Idempotent."""
        if not self._ended:
            self._ended = True
            self._hand_over()
            self._queue.put(None)
            self._thread.join()
        return self._good

    def remove(self) -> None:
        """Take the file away."""
        if self._part is not None:
            self._part.unlink(missing_ok=True)
            self._part = None

    def rename(self, target: Path) -> None:
        """Give the file its name."""
        assert self._part is not None
        self._part.rename(target)
        self._part = None

    def _work(self) -> None:
        fd = -1
        while (batch := self._queue.get()) is not None:
            for chunk, hashed, kept in batch:
                if not hashed:
                    self._digest.update(chunk)
                self._good = self._good and kept
                if self._good and self._part is not None:
                    try:
                        if fd < 0:
                            fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
                        _write(fd, chunk)
                    except OSError:  # a full disk: the traffic goes on, the record says that the body is missing
                        self._good = False
            self._room.release()
        if fd >= 0:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
