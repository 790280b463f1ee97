"""Reader and writer of the one record layout, ``bpf/record.h``.

Three forms of the same records exist:

* in a ring and in a journal each record stands behind the kernel's 8-byte ring header (`strip_ring` removes it);
* the *canonical* form, in ``witness/events.bin`` of a bundle, is the records alone, one after the other;
* `Record` is one of them in Python. What came from a box stays bytes.

Reading is strict: a record that breaks the layout raises `RecordError` with the offset of its first byte, and no
length inside a record is believed beyond `MAX_RECORD`.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

API: Final = 1
"""Number of this layout and of ``caisson/v1/tracerd.proto`` together; grows with each incompatible change of either."""

FIXED: Final = struct.Struct("<IHHQQQQQIIIIIiII16s6Q")
"""``struct caisson_rec``, 144 bytes."""

_HEAD: Final = struct.Struct("<IHHQQQQQI")
FIELD: Final = struct.Struct("<HHI")
RING_HEADER: Final = struct.Struct("<II")

MAX_RECORD: Final = 1 << 18
"""No record is longer (argv is cut at 128 KiB); a length beyond it is damage, not data."""

RING_BUSY: Final = 1 << 31
RING_DISCARD: Final = 1 << 30
FIELD_CUT: Final = 1
"""Bit of a field's own flags: this field is shorter than the truth. A cut walk has lost the names next to the root."""


Head = tuple[int, int, int, int, int]
"""Of one record in a buffer: where it begins, its size, its sequence number, its time in ns, its pid."""


class RecordError(ValueError):
    """The bytes are not records. ``offset`` is where the bad record begins."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Kind(IntEnum):
    """What happened (``enum caisson_kind``)."""

    FORK = 1
    EXEC = 2
    EXIT = 3
    OPEN = 4
    CONNECT = 5
    CHANGE = 6
    LOOK = 7
    PASS = 8
    CROSS = 9
    SOCKET = 10


class ChangeOp(IntEnum):
    """``args[0]`` of a change (``enum caisson_change``)."""

    RENAME = 1
    LINK = 2
    SYMLINK = 3
    UNLINK = 4
    RMDIR = 5
    MKDIR = 6
    MKNOD = 7
    TRUNCATE = 8
    CHMOD = 9
    CHOWN = 10
    UTIME = 11
    SETXATTR = 12
    REMOVEXATTR = 13
    MOUNT = 14
    UMOUNT = 15
    MOVE_MOUNT = 16
    OPEN_TREE = 17
    FSOPEN = 18
    FSCONFIG = 19
    FSMOUNT = 20
    FSPICK = 21
    MOUNT_SETATTR = 22
    MMAP = 23
    MEMFD = 24
    SETATTR = 25


class LookOp(IntEnum):
    """``args[0]`` of a look (``enum caisson_look``)."""

    STAT = 1
    ACCESS = 2
    READLINK = 3
    GETDENTS = 4
    STATFS = 5
    HANDLE = 6
    WATCH = 7
    GETXATTR = 8
    CHDIR = 9


class PassOp(IntEnum):
    """``args[0]`` of a descriptor that came without an open (``enum caisson_pass``)."""

    MESSAGE = 1
    PIDFD = 2
    HANDLE = 3
    ADDFD = 4
    RING = 5


class CrossOp(IntEnum):
    """``args[0]`` of a crossing (``enum caisson_cross``)."""

    SETNS = 1
    UNSHARE = 2
    CGROUP = 3
    PTRACE = 4
    VM_READ = 5
    VM_WRITE = 6
    BPF = 7
    MODULE = 8
    KEYCTL = 9
    URING = 10
    USERFAULTFD = 11
    CHROOT = 12
    PIVOT_ROOT = 13
    PRCTL = 14
    SECCOMP = 15
    PERF = 16
    KEXEC = 17
    CLOCK = 18
    HOST = 19
    MARK = 20


class SocketOp(IntEnum):
    """``args[0]`` of a socket's event (``enum caisson_socket``)."""

    CREATE = 1
    BIND = 2
    LISTEN = 3
    ACCEPT = 4
    SEND = 5
    FASTOPEN = 6


class Flag(IntFlag):
    """What must be known about a record's fields (``enum caisson_flag``)."""

    TRUNCATED = 1 << 0
    TOCTOU = 1 << 1
    UNRESOLVED = 1 << 2
    COMPAT32 = 1 << 3
    IO_URING = 1 << 4
    UPPER = 1 << 5
    DELETED = 1 << 6
    THREAD = 1 << 7
    NO_ENTRY = 1 << 8
    KERNEL = 1 << 9
    LATER = 1 << 10
    PENDING = 1 << 11
    DIRECT = 1 << 12


class Tag(IntEnum):
    """The variable fields (``enum caisson_tag``)."""

    GIVEN = 1
    GIVEN_EXIT = 2
    RESOLVED = 3
    WALK = 4
    ARGV = 5
    CWD = 6
    CWD_WALK = 7
    INTERP = 8
    ADDR = 9
    NEW = 10
    NEW_EXIT = 11
    NEW_CWD = 12
    NEW_CWD_WALK = 13
    NAME = 14


_ALL_FLAGS: Final = sum(Flag)
_NO_ARGS: Final = (0, 0, 0, 0, 0, 0)
_NO_FLAGS: Final = Flag(0)
_TEXT: Final = frozenset(
    (
        Tag.GIVEN, Tag.GIVEN_EXIT, Tag.RESOLVED, Tag.CWD, Tag.INTERP, Tag.NEW, Tag.NEW_EXIT, Tag.NEW_CWD, Tag.NAME,
    )
)  # fmt: skip
_TRUNCATED: Final = int(Flag.TRUNCATED)
_UNRESOLVED: Final = int(Flag.UNRESOLVED)
_KINDS: Final = {int(kind): kind for kind in Kind}
_FLAGS: Final[dict[int, Flag]] = {}  # those met so far, by value: making one costs more than all the rest
_OPS: Final[dict[int, int]] = {
    kind: max(ops)
    for kind, ops in (
        (Kind.CHANGE, ChangeOp), (Kind.LOOK, LookOp), (Kind.PASS, PassOp), (Kind.CROSS, CrossOp),
        (Kind.SOCKET, SocketOp),
    )
}  # fmt: skip
_SLOT: Final[dict[int, str]] = {
    Tag.GIVEN: "given",
    Tag.GIVEN_EXIT: "given_exit",
    Tag.RESOLVED: "resolved",
    Tag.WALK: "resolved",
    Tag.ARGV: "argv",
    Tag.CWD: "cwd",
    Tag.CWD_WALK: "cwd",
    Tag.INTERP: "interp",
    Tag.ADDR: "addr",
    Tag.NEW: "new",
    Tag.NEW_EXIT: "new_exit",
    Tag.NEW_CWD: "new_cwd",
    Tag.NEW_CWD_WALK: "new_cwd",
    Tag.NAME: "name",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One event of one box. Numbers are unsigned as stored; the named properties give them their meaning.

    ``resolved`` and ``cwd`` begin with ``/`` unless their walk was cut (then the names next to the root are missing)
    or the object has no path below the task's root (``memfd:x``, ``pipe:[7]``). ``error`` is 0 or a positive errno.
    ``cwd`` of anything but an exec is the folder a relative path starts from. `bpf/record.h` says what ``args`` are.
    """

    kind: Kind
    seq: int = 0
    time_ns: int = 0
    pid: int = 0
    tid: int = 0
    ppid: int = 0
    start_ns: int = 0
    parent_start_ns: int = 0
    cgroup: int = 0
    uid: int = 0
    gid: int = 0
    error: int = 0
    flags: Flag = _NO_FLAGS
    comm: bytes = b""
    args: tuple[int, int, int, int, int, int] = _NO_ARGS
    given: bytes | None = None
    given_exit: bytes | None = None
    resolved: bytes | None = None
    argv: tuple[bytes, ...] | None = None
    cwd: bytes | None = None
    interp: bytes | None = None
    addr: bytes | None = None
    new: bytes | None = None
    new_exit: bytes | None = None
    new_cwd: bytes | None = None
    name: bytes | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """The process this happened in: pid and start time, which together are never reused within a boot."""
        return self.pid, self.start_ns

    @property
    def asked(self) -> bytes | None:
        """The path the caller passed: as read at entry or, when its page was not in memory yet, at exit."""
        return self.given if self.given is not None else self.given_exit

    @property
    def child(self) -> tuple[int, int]:
        """Fork: identity of the process that was made."""
        return self.args[0], self.args[2]

    @property
    def place(self) -> bytes | None:
        """Absolute path of what this is about: the object's, else the path as given put onto its folder.

        The second is as the caller wrote it: symbolic links on the way are not followed.
        """
        if self.resolved is not None and self.resolved.startswith(b"/"):
            return self.resolved
        return _joined(self.cwd, self.asked)

    @property
    def new_place(self) -> bytes | None:
        """The same of a second path: the new name of a rename, a link's name, a mount's target."""
        given = self.new if self.new is not None else self.new_exit
        return _joined(self.new_cwd if self.new_cwd is not None else self.cwd, given)

    @property
    def altered(self) -> tuple[bytes, ...]:
        """Absolute paths that a change which succeeded made, unmade or altered; () for everything else."""
        if self.kind is not Kind.CHANGE or self.error or self.args[0] not in ALTERING:
            return ()
        only_new = self.args[0] in (ChangeOp.LINK, ChangeOp.SYMLINK)
        return tuple(path for path in (None if only_new else self.place, self.new_place) if path is not None)

    @property
    def dirfd(self) -> int:
        """Open: the directory descriptor as passed (-100 is the working directory)."""
        return signed(self.args[0])

    @property
    def open_flags(self) -> int:
        """Open: O_* flags."""
        return self.args[1]


ALTERING: Final = frozenset(op for op in ChangeOp if op < ChangeOp.MOUNT or op in (ChangeOp.MMAP, ChangeOp.SETATTR))
"""Changes of what lies in a tree, as opposed to which trees there are."""


def _joined(folder: bytes | None, path: bytes | None) -> bytes | None:
    if not path:
        return None
    if not path.startswith(b"/"):
        if folder is None or not folder.startswith(b"/"):
            return None
        path = folder + b"/" + path
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def signed(value: int) -> int:
    """An argument word as the signed 32-bit number the caller passed, whether or not it was sign-extended."""
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def decode(buffer: bytes | bytearray | memoryview, *, position: int = 0, offset: int = 0) -> Iterator[Record]:
    """Records of a whole canonical buffer.

    ``position`` is the number of records and ``offset`` the number of bytes that came before the buffer: the first
    numbers records that carry no sequence number of their own, the second makes errors point into the whole.
    """
    view = memoryview(buffer).cast("B")
    at = 0
    while at < len(view):
        size = _whole(view, at, offset)
        if size is None:
            raise RecordError(offset + at, f"ends after {len(view) - at} bytes")
        position += 1
        yield _record(view[at : at + size], position, offset + at)
        at += size


def decode_chunks(chunks: Iterable[bytes]) -> Iterator[Record]:
    """Records of a canonical stream that arrives in pieces of any size; holds one piece and one record at a time."""
    rest = b""
    position = offset = 0
    for chunk in chunks:
        data = rest + chunk if rest else chunk
        view = memoryview(data)
        at = 0
        while at < len(view):
            size = _whole(view, at, offset)
            if size is None:
                break
            position += 1
            yield _record(view[at : at + size], position, offset + at)
            at += size
        offset += at
        rest = bytes(view[at:])
    if rest:
        raise RecordError(offset, f"ends after {len(rest)} bytes")


def heads(buffer: bytes | bytearray | memoryview, *, position: int = 0, offset: int = 0) -> Iterator[Head]:
    """Where each whole record of a canonical buffer lies, and what one picks records by, without reading the rest.

    Ends before a record whose end is not in the buffer. ``position`` and ``offset`` as for `decode`.
    """
    view = memoryview(buffer).cast("B")
    at, end = 0, len(view)
    while end - at >= _HEAD.size:
        size, _kind, _nfields, seq, time_ns, _start, _parent_start, _cgroup, pid = _HEAD.unpack_from(view, at)
        if size < FIXED.size or size > MAX_RECORD or size % 8:
            _whole(view, at, offset)
        if size > end - at:
            return
        position += 1
        yield at, size, seq or position, time_ns, pid
        at += size


def encode(record: Record) -> bytes:
    """Canonical bytes of one record. Paths are written as RESOLVED and CWD, never as walks."""
    parts = [b""]
    count = 0
    for tag, data, cut in _fields(record):
        parts.append(FIELD.pack(tag, FIELD_CUT if cut else 0, len(data)))
        parts.append(data)
        count += 1
    size = FIXED.size + sum(map(len, parts))
    padding = -size % 8
    size += padding
    if size > MAX_RECORD:
        raise ValueError(f"a record of {size} bytes is over the limit of {MAX_RECORD}")
    if len(record.comm) > 16 or b"\0" in record.comm:
        raise ValueError(f"comm must be at most 16 bytes without NUL, not {record.comm!r}")
    parts[0] = FIXED.pack(
        size, record.kind, count, record.seq, record.time_ns, record.start_ns, record.parent_start_ns, record.cgroup,
        record.pid, record.tid, record.ppid, record.uid, record.gid, record.error, record.flags, 0, record.comm,
        *record.args,
    )  # fmt: skip
    parts.append(bytes(padding))
    return b"".join(parts)


def strip_ring(buffer: bytes, carry: bytes = b"") -> tuple[bytes, bytes]:
    """Turns a span of a journal into canonical bytes; returns them and the tail that is not whole yet.

    Pass that tail as ``carry`` with the next span. After the last one it must be empty. Discarded ring entries
    vanish; an entry still marked busy means that the span was copied before it was committed, and is an error.
    """
    data = carry + buffer if carry else buffer
    view = memoryview(data)
    parts: list[memoryview] = []
    at = 0
    while len(view) - at >= RING_HEADER.size:
        word, _page = RING_HEADER.unpack_from(view, at)
        if word & RING_BUSY:
            raise RecordError(at, "ring entry is not committed")
        length = word & ~RING_DISCARD
        if length > MAX_RECORD:
            raise RecordError(at, f"ring entry of {length} bytes, over the limit of {MAX_RECORD}")
        end = at + RING_HEADER.size + length + (-length % 8)
        if end > len(view):
            break
        if not word & RING_DISCARD:
            start = at + RING_HEADER.size
            size = _whole(view, start, 0) if length >= FIXED.size else None
            if size is None or size > length:
                raise RecordError(start, f"record does not fit its ring entry of {length} bytes")
            parts.append(view[start : start + size])
        at = end
    return b"".join(parts), bytes(view[at:])


def walk_path(names: bytes, *, cut: bool = False) -> bytes:
    """Path of a walk field: names from the leaf up, each closed by NUL. The empty walk is the root itself."""
    if not names:
        return b"" if cut else b"/"
    if not names.endswith(b"\0"):
        raise ValueError("walk does not end with NUL")
    parts = names[:-1].split(b"\0")
    if any(not part or b"/" in part for part in parts):
        raise ValueError("walk holds an empty name or a slash")
    parts.reverse()
    path = b"/".join(parts)
    return path if cut else b"/" + path


def _whole(view: memoryview, at: int, offset: int) -> int | None:
    """Size of the record at ``at``, or None when its end is not in the view."""
    left = len(view) - at
    if left < 4:
        return None
    size = int.from_bytes(view[at : at + 4], "little")
    if size < FIXED.size or size > MAX_RECORD or size % 8:
        raise RecordError(offset + at, f"size {size} is not a multiple of 8 from {FIXED.size} to {MAX_RECORD}")
    return size if size <= left else None


def _record(view: memoryview, position: int, offset: int) -> Record:
    (
        _size, kind, nfields, seq, time_ns, start_ns, parent_start_ns, cgroup,
        pid, tid, ppid, uid, gid, error, flags, reserved, comm, *args,
    ) = FIXED.unpack_from(view)  # fmt: skip
    if flags & ~_ALL_FLAGS or reserved or error < 0:
        raise RecordError(offset, f"flags {flags:#x}, reserved {reserved:#x}, error {error} are not of this layout")
    values: dict[str, bytes | tuple[bytes, ...]] = {}
    at = FIXED.size
    try:
        if kind not in _KINDS:
            raise ValueError(f"kind {kind} is not of this layout")
        if kind in _OPS and not 1 <= args[0] <= _OPS[kind]:
            raise ValueError(f"operation {args[0]} of kind {kind} is not of this layout")
        for _ in range(nfields):
            tag, field_flags, length = FIELD.unpack_from(view, at)
            at += FIELD.size
            if length > len(view) - at or field_flags & ~FIELD_CUT:
                raise ValueError(f"field of {length} bytes with flags {field_flags:#x} does not fit")
            slot = _SLOT.get(tag)
            if slot is None or slot in values:
                raise ValueError(f"field {slot or tag} is not of this layout, or there twice")
            value = _value(tag, bytes(view[at : at + length]), bool(field_flags), flags)
            if value is not None:
                values[slot] = value
            at += length
    except (ValueError, struct.error) as error_:
        raise RecordError(offset, str(error_)) from None
    if len(view) - at >= 8 or any(view[at:]):
        raise RecordError(offset, f"{len(view) - at} bytes after the last field")
    return Record(
        _KINDS[kind], seq or position, time_ns, pid, tid, ppid, start_ns, parent_start_ns, cgroup, uid, gid, error,
        _FLAGS.get(flags) or _flag(flags), comm.partition(b"\0")[0], tuple(args), **values,  # type: ignore[arg-type]
    )  # fmt: skip


def _flag(value: int) -> Flag:
    return _FLAGS.setdefault(value, Flag(value))


def _value(tag: int, data: bytes, cut: bool, flags: int) -> bytes | tuple[bytes, ...] | None:
    if tag in _TEXT:
        if b"\0" in data:
            raise ValueError(f"NUL inside field {_SLOT[tag]}")
        return data
    if tag == Tag.ADDR:
        return data
    if tag == Tag.ARGV:
        if not data:
            return ()
        if data.endswith(b"\0"):
            data = data[:-1]
        elif not (cut or flags & _TRUNCATED):
            raise ValueError("argv does not end with NUL")
        return tuple(data.split(b"\0"))
    if tag == Tag.WALK and flags & _UNRESOLVED:
        # The walk did not end at the task's root: names of a memfd, of nothing (a pipe), or of another tree. A memfd's
        # name is its maker's choice, slashes and all; a namespace's is empty.
        names = [name for name in data.split(b"\0") if name]
        if len(names) == 1:
            return names[0]
        return walk_path(b"".join(name + b"\0" for name in names), cut=True) or None
    return walk_path(data, cut=cut)


def _fields(record: Record) -> Iterator[tuple[Tag, bytes, bool]]:
    for tag, data in (
        (Tag.GIVEN, record.given),
        (Tag.GIVEN_EXIT, record.given_exit),
        (Tag.RESOLVED, record.resolved),
        (Tag.CWD, record.cwd),
        (Tag.INTERP, record.interp),
        (Tag.NEW, record.new),
        (Tag.NEW_EXIT, record.new_exit),
        (Tag.NEW_CWD, record.new_cwd),
        (Tag.NAME, record.name),
    ):
        if data is not None:
            if b"\0" in data:
                raise ValueError(f"NUL inside field {tag.name}")
            yield tag, data, False
    if record.argv is not None:
        if any(b"\0" in argument for argument in record.argv):
            raise ValueError("NUL inside an argument")
        yield Tag.ARGV, b"".join(argument + b"\0" for argument in record.argv), False
    if record.addr is not None:
        yield Tag.ADDR, record.addr, False
