"""Plain bpf(2): what the daemon needs of it, so that it never holds bcc.

Maps and links are found by their pins. A ring is mapped into memory and handed out in whole committed spans.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from caisson_tracerd.errors import BpfError

_NR_BPF: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT, _OBJ_PIN, _OBJ_GET = 0, 1, 2, 3, 4, 6, 7
_TYPE_RINGBUF: Final = 27
_ATTR_BYTES: Final = 128

_HEADER: Final = 8
_BUSY: Final = 1 << 31
_DISCARDED: Final = 1 << 30
_PAGE: Final = mmap.PAGESIZE
_LENGTH: Final = (1 << 30) - 1

_libc = ctypes.CDLL(None, use_errno=True)


def call(command: int, attributes: ctypes.Array[ctypes.c_char], what: str) -> int:
    """bpf(2) with ``union bpf_attr`` as a buffer that the kernel may write to. BpfError when it refuses."""
    number = _NR_BPF.get(os.uname().machine)
    if number is None:
        raise BpfError(f"{what}: bpf(2) is not known on {os.uname().machine}")
    result: int = _libc.syscall(number, command, attributes, _ATTR_BYTES)
    if result < 0:
        code = ctypes.get_errno()
        problem = BpfError(f"{what}: {os.strerror(code)}")
        problem.__cause__ = OSError(code, os.strerror(code))
        raise problem
    return result


def attributes(*parts: bytes) -> ctypes.Array[ctypes.c_char]:
    """``union bpf_attr`` that begins with these bytes."""
    return ctypes.create_string_buffer(b"".join(parts), _ATTR_BYTES)


def _bpf(command: int, values: bytes, what: str) -> int:
    return call(command, attributes(values), what)


def _failed_with(problem: BpfError, code: int) -> bool:
    return isinstance(problem.__cause__, OSError) and problem.__cause__.errno == code


def _path(path: Path) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(bytes(path) + b"\0")


def pinned(path: Path) -> int:
    """A descriptor of what is pinned there; the caller closes it."""
    name = _path(path)
    return _bpf(_OBJ_GET, struct.pack("QII", ctypes.addressof(name), 0, 0), f"pin {path}")


def pin(descriptor: int, path: Path) -> None:
    """Keep a map or link alive under a name."""
    name = _path(path)
    _bpf(_OBJ_PIN, struct.pack("QII", ctypes.addressof(name), descriptor, 0), f"pin {path}")


def create_ring(size: int) -> int:
    """A new ring of ``size`` bytes (a power of two, whole pages); the caller closes the descriptor."""
    with suppress(ValueError, OSError):  # before 5.11 maps count as locked memory, 64 KiB by default
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return _bpf(_MAP_CREATE, struct.pack("IIIII", _TYPE_RINGBUF, 0, 0, size, 0), f"ring of {size} bytes")


class Map:
    """A hash map with keys of 64 bits."""

    def __init__(self, descriptor: int, value_bytes: int, name: str) -> None:
        self._descriptor = descriptor
        self._value_bytes = value_bytes
        self._name = name

    @classmethod
    def at(cls, path: Path, value_bytes: int) -> Map:
        return cls(pinned(path), value_bytes, path.name)

    def get(self, key: int) -> bytes | None:
        """The value, or None."""
        value = ctypes.create_string_buffer(self._value_bytes)
        try:
            self._element(_MAP_LOOKUP, key, ctypes.addressof(value))
        except BpfError as problem:
            if _failed_with(problem, errno.ENOENT):
                return None
            raise
        return value.raw

    def put(self, key: int, value: bytes) -> None:
        """Set or replace."""
        held = ctypes.create_string_buffer(value, self._value_bytes)
        self._element(_MAP_UPDATE, key, ctypes.addressof(held))

    def delete(self, key: int) -> None:
        """Remove; nothing happens when it is not there."""
        try:
            self._element(_MAP_DELETE, key, 0)
        except BpfError as problem:
            if not _failed_with(problem, errno.ENOENT):
                raise

    def keys(self) -> list[int]:
        """Every key; the map must not change meanwhile."""
        found: list[int] = []
        following = ctypes.c_uint64()
        held = ctypes.c_uint64()
        while True:
            key = ctypes.addressof(held) if found else 0
            attributes = struct.pack("IIQQQ", self._descriptor, 0, key, ctypes.addressof(following), 0)
            try:
                _bpf(_MAP_NEXT, attributes, f"map {self._name}")
            except BpfError as problem:
                if _failed_with(problem, errno.ENOENT):
                    return found
                raise
            held.value = following.value
            found.append(following.value)

    def close(self) -> None:
        os.close(self._descriptor)

    def _element(self, command: int, key: int, value: int) -> None:
        held = ctypes.c_uint64(key)
        attributes = struct.pack("IIQQQ", self._descriptor, 0, ctypes.addressof(held), value, 0)
        _bpf(command, attributes, f"map {self._name}")


class Ring:
    """The reading end of a ring buffer. ``consumed`` counts bytes since the ring was made, across restarts.

    Its bytes are mapped when first read and let go by `rest`: a mapped ring counts whole as this process's memory.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._area: mmap.mmap | None = None
        try:
            self._consumer = mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
            self._producer = mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        except (OSError, ValueError) as problem:
            os.close(descriptor)
            raise BpfError(f"ring of {size} bytes cannot be mapped: {problem}") from problem
        self._positions = memoryview(self._producer)[:8].cast("Q")
        # One store of eight bytes. struct.pack_into would zero them first, and a record made in that moment finds the
        # ring full.
        self._given_back = memoryview(self._consumer)[:8].cast("Q")
        self._data = memoryview(b"")
        self._words = self._data

    @property
    def consumed(self) -> int:
        return self._given_back[0]

    @property
    def produced(self) -> int:
        return self._positions[0]

    @property
    def used(self) -> int:
        """Bytes that wait."""
        return self.produced - self.consumed

    def span(self, limit: int) -> list[memoryview]:
        """The committed records after ``consumed``, at least one record and else at most about ``limit`` bytes.

        As one piece, or two where the ring begins anew; the caller releases them.
        """
        begin = position = self.consumed
        end = min(self.produced, begin + limit)
        if position == end:
            return []
        self._map()
        words, mask = self._words, self.size // 4 - 1
        while position < end:
            header = words[(position >> 2) & mask]
            if header & _BUSY:
                break
            position += ((header & _LENGTH) + _HEADER + 7) & ~7
        start, count = begin & (self.size - 1), position - begin
        first = min(count, self.size - start)
        return [piece for piece in (self._data[start : start + first], self._data[: count - first]) if piece.nbytes]

    def kinds(self) -> list[int]:
        """The kind of every committed record that waits; what the kernel discarded has none."""
        found = []
        position, end = self.consumed, self.produced
        if position != end:
            self._map()
        words, mask = self._words, self.size // 4 - 1
        while position < end:
            header = words[(position >> 2) & mask]
            if header & _BUSY:
                break
            if not header & _DISCARDED:
                found.append(words[((position >> 2) + 3) & mask] & 0xFFFF)
            position += ((header & _LENGTH) + _HEADER + 7) & ~7
        return found

    def advance(self, count: int) -> None:
        """Give ``count`` bytes back to the kernel."""
        self._given_back[0] += count

    def rest(self) -> None:
        """Let the mapping of the bytes go until they are read again."""
        if self._area is not None:
            self._words.release()
            self._data.release()
            self._area.close()
            self._area = None

    def close(self) -> None:
        self.rest()
        self._positions.release()
        self._given_back.release()
        self._producer.close()
        self._consumer.close()
        os.close(self.descriptor)

    def _map(self) -> None:
        if self._area is None:
            self._area = mmap.mmap(self.descriptor, _PAGE + self.size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
            self._data = memoryview(self._area)[_PAGE:]
            self._words = self._data.cast("I")
