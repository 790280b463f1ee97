"""Names that were changed, as strace tells them, into records. No I/O and no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from caisson_proto.record import ChangeOp, Flag, Kind, Record

from caisson_runner.witness import strace_lines as text
from caisson_runner.witness.strace_lines import Result

CHANGES: Final[Mapping[str, ChangeOp]] = {
    "rename": ChangeOp.RENAME, "renameat": ChangeOp.RENAME, "renameat2": ChangeOp.RENAME, "link": ChangeOp.LINK,
    "linkat": ChangeOp.LINK, "symlink": ChangeOp.SYMLINK, "symlinkat": ChangeOp.SYMLINK, "unlink": ChangeOp.UNLINK,
    "unlinkat": ChangeOp.UNLINK, "rmdir": ChangeOp.RMDIR, "mkdir": ChangeOp.MKDIR, "mkdirat": ChangeOp.MKDIR,
    "truncate": ChangeOp.TRUNCATE, "ftruncate": ChangeOp.TRUNCATE, "chmod": ChangeOp.CHMOD, "fchmod": ChangeOp.CHMOD,
    "fchmodat": ChangeOp.CHMOD,
}  # fmt: skip
"""Calls the witness asks strace for, with what they do."""

_RENAME_FLAGS: Final = {b"RENAME_NOREPLACE": 1, b"RENAME_EXCHANGE": 2, b"RENAME_WHITEOUT": 4}
_U64: Final = 0xFFFF_FFFF_FFFF_FFFF


class Actor(Protocol):
    """The process a change happened in."""

    cwd: bytes | None
    compat: bool


def change(
    make: Callable[..., Record],
    process: Actor,
    tid: int,
    name: str,
    arguments: Mapping[str, bytes],
    result: Result,
    at: int,
) -> Record:
    """The record of one call in `CHANGES`; ``make`` fills in what every record of the process has."""
    op = CHANGES[name]
    given, second = (text.read_path(arguments[key]) if key in arguments else None for key in ("path", "new"))
    last = arguments.get("last", b"")
    if name == "unlinkat" and b"AT_REMOVEDIR" in last:
        op = ChangeOp.RMDIR
    flags = Flag.COMPAT32 if process.compat else Flag(0)
    if any(one is not None and one.cut for one in (given, second)):
        flags |= Flag.TRUNCATED
    fields: dict[str, Any] = {}
    if given is not None:
        fields["given"] = given.data
        if op is not ChangeOp.SYMLINK:
            fields["cwd"] = _folder(given.data, arguments.get("dirfd"), process)
    if second is not None:
        fields["new"] = second.data
        folder = _folder(second.data, arguments.get("newdirfd"), process)
        if folder != fields.get("cwd"):
            fields["new_cwd"] = folder
    where = text.descriptor(arguments.get("dirfd"))
    if "fd" in arguments:
        where = text.descriptor(arguments["fd"])
        fields["resolved"], deleted = text.read_note(arguments["fd"])
        if deleted:
            flags |= Flag.DELETED
    number = _flags(last) if name in ("renameat2", "linkat", "unlinkat") else text.read_number(last)
    other = text.descriptor(arguments.get("newdirfd")) if second is not None else 0
    args = (int(op), where & _U64, number, 0, 0, other & _U64)
    record: Record = make(Kind.CHANGE, process, tid, at, error=result.error, flags=flags, args=args, **fields)
    return record


def _folder(path: bytes | None, descriptor: bytes | None, process: Actor) -> bytes | None:
    """Where a relative path starts from."""
    if not path or path.startswith(b"/"):
        return None
    note, _deleted = text.read_note(descriptor)
    return note if note is not None else process.cwd if text.descriptor(descriptor) == -100 else None


def _flags(words: bytes) -> int:
    known = {b"AT_REMOVEDIR": 0x200, b"AT_SYMLINK_FOLLOW": 0x400, b"AT_EMPTY_PATH": 0x1000, **_RENAME_FLAGS}
    return sum(known.get(word, 0) for word in words.split(b"|"))
