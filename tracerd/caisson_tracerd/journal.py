"""A box's journal: the ring's spans, appended as they are, served by offset.

One invariant makes a killed daemon harmless: the journal's length equals the ring's count of consumed bytes since
the box began. Bytes are
written first and given back to the kernel second; a journal longer than that count was cut off in between and is
truncated before the ring is drained again. Nothing is lost and nothing stands in it twice.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from caisson_tracerd.bpfsys import Ring

CHUNK_BYTES: Final = 1 << 18
_SPAN_BYTES: Final = 1 << 20
MAX_BYTES: Final = 1 << 36
"""One box cannot fill a disk without bound: 64 GiB."""


class Journal:
    """An append-only file with readers that may wait for more. ``base`` is the ring's count when the box began."""

    def __init__(self, path: Path, base: int, bound: int = MAX_BYTES) -> None:
        self.path = path
        self.bound = bound
        self._base = base
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        self.closed = False
        self._more = asyncio.Event()

    def agree_with(self, ring: Ring) -> None:
        """After a restart: forget what was written but not yet given back."""
        consumed = ring.consumed - self._base
        if self.size > consumed:
            os.ftruncate(self._descriptor, consumed)
            self.size = consumed

    def drain(self, ring: Ring, limit: int = 1 << 62) -> int:
        """Copy what is committed, about ``limit`` bytes at most; returns the bytes taken.

        OSError leaves the rest in the ring; a journal at its bound is a full disk.
        """
        total = 0
        while total < limit:
            pieces = ring.span(_SPAN_BYTES)
            if not pieces:
                break
            taken = sum(piece.nbytes for piece in pieces)
            try:
                if self.size + taken > self.bound:
                    raise OSError(errno.EFBIG, f"the journal has reached its bound of {self.bound} bytes")
                self._append(pieces, taken)
            finally:
                for piece in pieces:
                    piece.release()
            self.size += taken
            ring.advance(taken)
            total += taken
        if total:
            self._wake()
        return total

    def _append(self, pieces: list[memoryview], whole: int) -> None:
        """All of them or nothing."""
        try:
            written = os.writev(self._descriptor, pieces)
            while written < whole:  # a full disk takes a part and then nothing
                left, skip = [], written
                for piece in pieces:
                    left.append(piece[skip:])
                    skip = max(0, skip - piece.nbytes)
                more = os.writev(self._descriptor, left)
                for piece in left:
                    piece.release()
                written += more
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise

    def finish(self) -> None:
        """No more will come; waiting readers end."""
        self.closed = True
        self._wake()

    async def read(self, offset: int, follow: bool) -> AsyncIterator[tuple[int, bytes]]:
        """(offset, bytes) from ``offset`` on; with ``follow`` until the journal is finished or closed."""
        if self._descriptor < 0:
            return
        own = os.dup(self._descriptor)  # the box may be dropped, and its number be another's, while a reader waits
        try:
            while True:
                more = self._more
                while offset < self.size:
                    data = os.pread(own, min(CHUNK_BYTES, self.size - offset), offset)
                    if not data:
                        return
                    yield offset, data
                    offset += len(data)
                if not follow or (self.closed and offset >= self.size):
                    return
                if more is self._more:
                    await more.wait()
        finally:
            os.close(own)

    def close(self) -> None:
        self.finish()
        os.close(self._descriptor)
        self._descriptor = -1

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
