"""What was done against what was seen. Pure.

A deed is ``seen`` when one observation of its class tells what was done to *which object* (path, inode, address,
arguments), with the same errno; ``partly`` when the call is there, and the object is not; else ``missed``. Where a
witness tells as a fact what is not so (a file that was not the one opened, arguments that were not given) and does not
mark it as doubtful, that counts as ``wrong`` beside the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from caisson_runner.compare.deeds import Deed
from caisson_runner.compare.sights import Sight

_ALSO: Final = {
    "open_tree": ("open", "cross"),
    "move_mount": ("cross",),
    "open_by_handle_at": ("pass",),
    "mmap": ("change", "io"),
    "read": ("change",),
    "memfd_create": ("cross", "open"),
    "sendto": ("connect",),
    "sendmsg": ("connect",),
    "sendmmsg": ("connect",),
    "setsockopt": ("cross",),
    "name_to_handle_at": ("pass",),
}
"""Classes under which a witness may also file a call."""

_SAME: Final = {
    **dict.fromkeys(("renameat", "renameat2"), "rename"),
    "linkat": "link",
    "symlinkat": "symlink",
    **dict.fromkeys(("unlinkat", "rmdir"), "unlink"),
    "mkdirat": "mkdir",
    "mknodat": "mknod",
    **dict.fromkeys(("fchmodat", "fchmodat2"), "chmod"),
    **dict.fromkeys(("fchownat", "lchown"), "chown"),
    **dict.fromkeys(("utimes", "utime", "futimesat", "utimens"), "utimensat"),
    "lsetxattr": "setxattr",
    **dict.fromkeys(("stat", "lstat", "newfstatat", "statx", "fstat"), "stat"),
    **dict.fromkeys(("faccessat", "faccessat2"), "access"),
    "readlinkat": "readlink",
    **dict.fromkeys(("getdents64", "listdir"), "getdents"),
    "inotify_add_watch": "inotify",
    "name_to_handle_at": "name_to_handle",
    **dict.fromkeys(("process_vm_readv", "process_vm_writev"), "process_vm"),
    **dict.fromkeys(("init_module", "finit_module"), "module"),
    "accept4": "accept",
    **dict.fromkeys(("sendto", "sendmsg", "sendmmsg"), "send"),
}

SEEN, PARTLY, MISSED = "seen", "partly", "missed"


@dataclass(frozen=True, slots=True)
class Mark:
    """The result for one deed. ``expected`` and ``seen`` are counts of single events."""

    deed: Deed
    word: str
    expected: int
    seen: int
    wrong: int


class Sights:
    """All sights of one run, each to be used for one deed at most."""

    def __init__(self, sights: Iterable[Sight]) -> None:
        self.all = list(sights)
        self._by_event: dict[str, list[Sight]] = {}
        for one in self.all:
            self._by_event.setdefault(one.event, []).append(one)
        self._used: set[int] = set()
        self._marked: dict[bytes, set[int]] = {}
        for one in self.all:
            if one.pid:
                for word in (*one.names, *(one.argv or ()), *((one.object,) if one.object else ())):
                    self._marked.setdefault(word, set()).add(one.pid)

    def of(self, event: str, op: str = "") -> list[Sight]:
        """Unused sights of a class, and then of the classes a call may be filed under."""
        return [
            one
            for name in (event, *_ALSO.get(op, ()))
            for one in self._by_event.get(name, ())
            if id(one) not in self._used
        ]

    def use(self, one: Sight) -> None:
        self._used.add(id(one))

    def pids(self, mark: bytes | None) -> set[int]:
        """The processes that opened, or were given as an argument, a name nobody else knows."""
        if mark is None:
            return set()
        return self._marked.get(mark, set())


def judge(deeds: Sequence[Deed], sights: Iterable[Sight]) -> list[Mark]:
    """A mark for every deed, in order."""
    table = Sights(sights)
    return [_objects(deed, table) if deed.objects else _one(deed, table) for deed in deeds]


def word_of(marks: Sequence[Mark]) -> str:
    """The result of a whole route."""
    words = {mark.word for mark in marks}
    if not words or words == {MISSED}:
        return MISSED
    return SEEN if words == {SEEN} else PARTLY


def _one(deed: Deed, table: Sights) -> Mark:
    candidates = table.of(deed.event, deed.op)
    graded = [(grade, one) for one in candidates if (grade := _grade(deed, one, table))]
    taken = sorted(graded, key=lambda pair: -pair[0])[: deed.count]  # stable: the earliest of equals
    for _, one in taken:
        table.use(one)
    full = sum(grade == 2 for grade, _ in taken)
    wrong = sum(_lies(deed, one) for one in candidates) if deed.lie else 0
    return Mark(deed, SEEN if full >= deed.count else PARTLY if taken else MISSED, deed.count, full, wrong)


def _objects(deed: Deed, table: Sights) -> Mark:
    """Many opens of a name that somebody exchanges meanwhile: counted by object."""
    expected = Counter(dict(deed.objects))
    known = set(expected) | set(deed.lie)
    told: Counter[bytes] = Counter()
    wrong = 0
    for one in table.of("open"):
        if one.errno or not (known & set(one.names) or one.object in known):
            continue
        table.use(one)
        if one.object in known:
            told[one.object or b""] += 1
            # The two files have one name each, so a name that is not the object's was not what the kernel read.
            wrong += bool(one.names) and not one.doubtful and one.object not in one.names
        elif one.names:
            told[one.names[0]] += 1
    seen = sum((expected & told).values())
    total = sum(expected.values())
    wrong += sum((told - expected).values())
    return Mark(deed, SEEN if seen == total and not wrong else PARTLY if seen else MISSED, total, seen, wrong)


def _lies(deed: Deed, one: Sight) -> bool:
    if not deed.lie or one.doubtful:
        return False
    if one.argv is not None:
        return any(word in one.argv for word in deed.lie)
    return one.object is not None and one.object in deed.lie


def _grade(deed: Deed, one: Sight, table: Sights) -> int:
    """2: what was done and to what; 1: that it was done; 0: another thing."""
    if deed.event in ("fork", "exit"):
        return _process(deed, one, table)
    if one.errno is not None and one.errno != deed.errno:
        return 0
    if deed.event == "exec":
        return _exec(deed, one)
    if deed.addr is not None or deed.family:
        return _socket(deed, one)
    return _file(deed, one)


def _process(deed: Deed, one: Sight, table: Sights) -> int:
    if deed.event == "fork":
        if deed.child and one.child_inside == deed.child:
            return 2
        return 2 if one.child in table.pids(deed.mark) else 0
    return 2 if one.status == deed.status and one.pid in table.pids(deed.mark) else 0


def _exec(deed: Deed, one: Sight) -> int:
    names = {name for name in (deed.path,) if name}
    if deed.errno and one.argv is None:  # of a refused exec only the name is left
        return 2 if names & set(one.names) else 0
    same_argv = one.argv is not None and one.argv in (deed.argv, deed.argv2)
    cut_argv = one.argv is not None and deed.argv is not None and one.doubtful and _begins(deed.argv, one.argv)
    same_object = (one.object is not None and one.object == deed.object) or _same_inode(deed, one)
    if not (same_argv or cut_argv):
        return 0
    if deed.errno:
        return 2 if names & set(one.names) or not one.names else 1
    if deed.interp is not None and one.interp != deed.interp:
        return 1
    if same_object or deed.object is None:
        return 2 if same_argv else 1
    return 2 if same_argv and one.object is None and deed.object in one.names else 1


def _begins(whole: tuple[bytes, ...], part: tuple[bytes, ...]) -> bool:
    if not part or len(part) > len(whole):
        return False
    return whole[: len(part) - 1] == part[:-1] and whole[len(part) - 1].startswith(part[-1])


def _same_inode(deed: Deed, one: Sight) -> bool:
    return bool(deed.ino) and one.ino == (deed.dev, deed.ino)


def _socket(deed: Deed, one: Sight) -> int:
    if deed.addr is not None:
        if one.addr is None or not _same_address(one.addr, deed.addr):
            return 0
        return 2 if deed.final is None or one.final == deed.final else 1
    if one.family != deed.family or (deed.type and one.type and one.type != deed.type):
        return 0
    return 2 if one.type == deed.type or not deed.type else 1


def _same_address(one: bytes, other: bytes) -> bool:
    return one.rstrip(b"\0") == other.rstrip(b"\0")


def same_call(one: str, other: str) -> bool:
    """Whether two names stand for the same deed (``renameat2`` is a rename)."""
    return one == other or _SAME.get(one, one) == _SAME.get(other, other)


def _file(deed: Deed, one: Sight) -> int:
    if deed.event == "pass" and one.inside and one.inside != deed.pid:
        return 0
    if deed.event != "open" and one.op and deed.op and not same_call(deed.op, one.op):
        return 0
    names = {name for name in (deed.path, deed.path2) if name}
    if not names and deed.object is None and not deed.ino:
        return 2 if deed.op and same_call(deed.op, one.op) else 0
    same_object = (one.object is not None and one.object == deed.object) or _same_inode(deed, one)
    if same_object or (not names and deed.object in one.names):
        return 2
    named = names & set(one.names)
    if not named:
        return 0
    if names <= set(one.names) and (deed.errno or deed.object is None or deed.object in names):
        return 2
    return 1
