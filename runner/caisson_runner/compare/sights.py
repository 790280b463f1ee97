"""What a witness showed, in one form for all: a record, a line of strace or something a poll found.

Pure: bytes and records in, `Sight` out. What the three can say differs (a poll knows no names as given, strace no
inodes); a field that a witness cannot fill stays empty and can then confirm nothing.
"""

from __future__ import annotations

import errno
import re
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from caisson_proto.record import ChangeOp, CrossOp, Flag, Kind, LookOp, PassOp, Record, SocketOp

from caisson_runner.witness import strace_lines as text


@dataclass(frozen=True, slots=True)
class Sight:
    """One observation. ``pid`` and ``child`` are the witness's numbers, ``child_inside`` the box's own."""

    event: str
    op: str = ""
    pid: int = 0
    inside: int = 0
    """The process's number in the box, where the witness knows it."""
    names: tuple[bytes, ...] = ()
    object: bytes | None = None
    ino: tuple[int, int] | None = None
    errno: int | None = 0
    argv: tuple[bytes, ...] | None = None
    interp: bytes | None = None
    child: int = 0
    child_inside: int = 0
    status: int = 0
    addr: bytes | None = None
    family: int = 0
    type: int = 0
    protocol: int = 0
    final: int | None = None
    """Errno with which a non-blocking connect ended."""
    doubtful: bool = False
    """The witness itself says that a name or a list is not to be relied on (toctou, truncated)."""


_EVENTS: Final[Mapping[Kind, str]] = {kind: kind.name.lower() for kind in Kind}
_OPS: Final[Mapping[Kind, type[IntEnum]]] = {
    Kind.CHANGE: ChangeOp, Kind.LOOK: LookOp, Kind.PASS: PassOp, Kind.CROSS: CrossOp, Kind.SOCKET: SocketOp,
}  # fmt: skip
_CALLED: Final[Mapping[tuple[Kind, int], str]] = {
    (Kind.CHANGE, ChangeOp.UTIME): "utimensat",
    (Kind.CHANGE, ChangeOp.MEMFD): "memfd_create",
    (Kind.LOOK, LookOp.HANDLE): "name_to_handle_at",
    (Kind.LOOK, LookOp.WATCH): "inotify_add_watch",
    (Kind.PASS, PassOp.MESSAGE): "recvmsg",
    (Kind.PASS, PassOp.PIDFD): "pidfd_getfd",
    (Kind.PASS, PassOp.HANDLE): "open_by_handle_at",
    (Kind.CROSS, CrossOp.VM_READ): "process_vm_readv",
    (Kind.CROSS, CrossOp.VM_WRITE): "process_vm_writev",
    (Kind.CROSS, CrossOp.MODULE): "finit_module",
    (Kind.CROSS, CrossOp.URING): "io_uring_setup",
    (Kind.CROSS, CrossOp.PERF): "perf_event_open",
    (Kind.CROSS, CrossOp.MARK): "setsockopt",
    (Kind.SOCKET, SocketOp.CREATE): "socket",
    (Kind.SOCKET, SocketOp.FASTOPEN): "sendto",
}
"""Operations that are not called like the system call a route names."""


def of_records(records: Iterable[Record]) -> list[Sight]:
    """Sights of the canonical record, whichever witness wrote it. The later end of a connect is put to the connect."""
    found: list[Sight] = []
    under_way: dict[int, int] = {}
    for one in records:
        if one.kind is Kind.CONNECT and one.flags & Flag.LATER:
            if (at := under_way.pop(one.args[5], None)) is not None:
                found[at] = replace(found[at], final=one.error)
            continue
        if one.kind is Kind.CONNECT and one.error == errno.EINPROGRESS:
            under_way[one.args[5]] = len(found)
        found.append(of_record(one))
    return found


def of_record(one: Record) -> Sight:
    """One record's sight."""
    fields = (one.given, one.given_exit, one.new, one.new_exit, one.name)
    arg = one.args
    ino = None
    op = ""
    family = kind = protocol = status = child = 0
    if one.kind in _OPS:
        op = _CALLED.get((one.kind, arg[0])) or _OPS[one.kind](arg[0]).name.lower()
    if one.kind in (Kind.OPEN, Kind.CHANGE, Kind.LOOK, Kind.PASS):
        ino = arg[3], arg[4]
    elif one.kind is Kind.EXEC:
        ino = arg[0], arg[1]
    elif one.kind is Kind.FORK:
        child = arg[0]
    elif one.kind is Kind.EXIT:
        status = arg[1] + 128 if arg[1] else arg[0]
    elif one.kind is Kind.CONNECT:
        family, protocol, kind = arg[0], arg[2], arg[4]
    elif one.kind is Kind.SOCKET:
        family, protocol, kind = arg[1], arg[4] >> 16, arg[4] & 0xFFFF
    elif op == "cgroup" and not arg[3]:
        op = "cgroup-out"
    return Sight(
        _EVENTS[one.kind], op, one.pid, 0, tuple(name for name in fields if name is not None), one.resolved, ino,
        None if one.flags & Flag.PENDING else one.error, one.argv, one.interp, child, 0, status, one.addr, family, kind,
        protocol, None, bool(one.flags & (Flag.TOCTOU | Flag.TRUNCATED)),
    )  # fmt: skip


# strace

_CLASSES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("open", "openat", "openat2", "creat", "open_by_handle_at"), "open"),
    **dict.fromkeys(("execve", "execveat"), "exec"),
    **dict.fromkeys(("fork", "vfork", "clone", "clone3"), "fork"),
    **dict.fromkeys(
        (
            "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
            "getdents64", "getdents", "name_to_handle_at", "inotify_add_watch", "statfs", "getxattr", "lgetxattr",
        ),
        "look",
    ),
    **dict.fromkeys(
        (
            "truncate", "ftruncate", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "rename", "renameat",
            "renameat2", "link", "linkat", "symlink", "symlinkat", "chmod", "fchmodat", "fchmodat2", "chown",
            "fchownat", "lchown", "utimensat", "utimes", "setxattr", "lsetxattr", "removexattr", "mount", "umount2",
            "open_tree", "move_mount", "memfd_create", "mknod", "mknodat", "fsopen", "fsmount",
        ),
        "change",
    ),
    **dict.fromkeys(
        ("mmap", "copy_file_range", "sendfile", "splice", "fanotify_mark"), "io"  # read and write cost strace too much
    ),
    "connect": "connect",
    **dict.fromkeys(
        ("socket", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg", "setsockopt", "socketpair"),
        "socket",
    ),
    **dict.fromkeys(("recvmsg", "recvmmsg", "pidfd_getfd"), "pass"),
    **dict.fromkeys(
        (
            "setns", "unshare", "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "init_module",
            "finit_module", "keyctl", "add_key", "io_uring_setup", "io_uring_enter", "prctl", "kcmp", "pidfd_open",
            "kill", "userfaultfd", "seccomp", "clock_settime", "perf_event_open",
        ),
        "cross",
    ),
}  # fmt: skip
STRACE_CALLS: Final = tuple(_CLASSES)
"""What the comparison asks strace for: all it can show of our classes, not only what the product's witness uses."""

_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\.\.\.)?')
_ADDRESS: Final = re.compile(rb"\{sa_family=(?:\"(?:[^\"\\]|\\.)*\"|[^\"{}]|\{[^{}]*\})*\}")
_RETURN: Final = re.compile(
    rb"\)\s+= (?P<value>\?|-?\d+|0x[0-9a-f]+)(?P<note><(?:->|[^<>]|<[^<>]*>)*>(?:\(deleted\))?)?"
    rb"(?: (?P<errno>E[A-Z0-9]+) )?"
)
_ERRNO: Final = {name.encode(): number for number, name in errno.errorcode.items()}
_FAMILIES: Final = {name.encode(): int(value) for name, value in vars(socket).items() if name.startswith("AF_")}
_HOST_PID: Final = re.compile(rb"/\* (\d+) in strace's PID NS \*/")
_NOTES: Final = re.compile(rb"\d+<((?:->|[^<>]|<[^<>]*>)*)>")
_EXITED: Final = re.compile(rb"\+\+\+ (?:exited with (\d+)|killed by (SIG\w+))")
_SUPERSEDED: Final = re.compile(rb"\+\+\+ superseded by execve in pid (\d+)")
_TYPES: Final = {b"SOCK_STREAM": 1, b"SOCK_DGRAM": 2, b"SOCK_RAW": 3, b"SOCK_SEQPACKET": 5}
_PROTOCOLS: Final = {
    b"IPPROTO_ICMP": 1, b"IPPROTO_TCP": 6, b"IPPROTO_UDP": 17, b"IPPROTO_SCTP": 132, b"IPPROTO_MPTCP": 262,
    b"IPPROTO_RAW": 255, b"IPPROTO_ICMPV6": 58, b"IPPROTO_IP": 0,
}  # fmt: skip


def of_strace(lines: Iterable[bytes]) -> Iterator[Sight]:
    """Sights of strace's text. Calls that strace had to interrupt are put together first."""
    halves: dict[int, bytes] = {}
    for raw in lines:
        line = text.read_line(raw)
        if line is None:
            continue
        body = line.body
        if (end := _EXITED.match(body)) is not None:
            status = int(end[1]) if end[1] else 128 + _signal(end[2])
            yield Sight("exit", pid=line.tid, status=status)
            continue
        if (gone := _SUPERSEDED.match(body)) is not None:  # a thread's exec goes on under its process's number
            if (half := halves.pop(int(gone[1]), None)) is not None:
                halves[line.tid] = half
            continue
        if (second := text.resumed(body)) is not None:
            body = halves.pop(line.tid, b"") + second
        elif (first := text.unfinished(body)) is not None:
            halves[line.tid] = first
            continue
        yield from _call(line.tid, body)


def _call(tid: int, body: bytes) -> Iterator[Sight]:
    name = text.call_name(body)
    event = _CLASSES.get(name)
    returned = list(_RETURN.finditer(body))
    if event is None or not returned:
        return
    last = returned[-1]
    arguments = body[len(name) + 1 : last.start()]
    error = 0
    if last["errno"]:
        error = _ERRNO.get(last["errno"], -1)
    value = int(last["value"], 0) if last["value"] != b"?" else -1
    if last["value"] == b"?" and event != "exec":
        error = -1
    names = tuple(text.unescape(quoted[1]) for quoted in _QUOTED.finditer(arguments))
    notes = [_object(text.unescape(note[1])) for note in _NOTES.finditer(_QUOTED.sub(b"", arguments))]
    note, _deleted = text.read_note(last["note"])
    common = {"op": name, "pid": tid, "errno": error}
    if event == "fork":
        host = _HOST_PID.search(body[last.start() :])
        yield Sight("fork", child=int(host[1]) if host else 0, child_inside=max(value, 0), **common)  # type: ignore[arg-type]
    elif event == "exec":
        argv = _argv(arguments)
        yield Sight("exec", names=names[:1], object=_at(arguments, notes), argv=argv, **common)  # type: ignore[arg-type]
    elif event in ("connect", "socket"):
        found = list(_ADDRESS.finditer(arguments))
        family, kind, protocol = _socket(arguments) if name in ("socket", "socketpair") else (0, 0, 0)
        for address in found or (None,):
            packed = text.read_address(address[0], _length(address[0]))[2] if address else None
            yield Sight(
                event, names=names, addr=packed, family=family, type=kind, protocol=protocol, **common,  # type: ignore[arg-type]
            )  # fmt: skip
    else:
        shown = note if note is not None else (notes[-1] if notes and event in ("io", "look", "change") else None)
        if event == "pass":
            shown = notes[-1] if notes and name == "recvmsg" else note
        yield Sight(event, names=(*names, *notes), object=shown, **common)  # type: ignore[arg-type]


def _argv(arguments: bytes) -> tuple[bytes, ...] | None:
    start = arguments.find(b", [")
    if start < 0:
        return None
    inside = arguments[start + 2 :]
    end = re.compile(rb'\[(?:"(?:[^"\\]|\\.)*+"(?:\.\.\.)?|, |\.\.\.)*\]').match(inside)
    return tuple(text.unescape(word[1]) for word in _QUOTED.finditer(end[0])) if end else None


def _object(name: bytes) -> bytes:
    """A memfd has no place in any tree, whatever strace puts before its name."""
    return name[1:] if name.startswith(b"/memfd:") else name


def _at(arguments: bytes, notes: list[bytes]) -> bytes | None:
    """The object of ``execveat(3</memfd:x>(deleted), "", …)``: with an empty name, the descriptor's own."""
    return notes[0] if notes and b', "", [' in arguments else None


def _length(address: bytes) -> int:
    if b"AF_INET6" in address:
        return 28
    if b"AF_INET" in address:
        return 16
    if b"AF_UNIX" in address:
        quoted = _QUOTED.search(address)
        return 2 + (len(text.unescape(quoted[1])) if quoted else 0) + (b"sun_path=@" in address)
    return 12 if b"AF_NETLINK" in address else 16


def _socket(arguments: bytes) -> tuple[int, int, int]:
    words = [word.strip() for word in arguments.split(b",")]
    family = _FAMILIES.get(words[0], 0)
    kind = next((number for name, number in _TYPES.items() if len(words) > 1 and name in words[1]), 0)
    last = words[2] if len(words) > 2 else b"0"
    named = next((number for name, number in _PROTOCOLS.items() if name == last), None)
    return family, kind, named if named is not None else int(last) if last.isdigit() else 0


def _signal(name: bytes) -> int:
    return int(getattr(signal, name.decode("ascii", "replace"), 0))


# polling


@dataclass(frozen=True, slots=True)
class Polled:
    """Everything a poller noticed, each once."""

    commands: frozenset[tuple[int, tuple[bytes, ...]]] = frozenset()
    """(pid inside the box, argv)."""
    programs: frozenset[tuple[int, bytes]] = frozenset()
    files: frozenset[tuple[int, bytes]] = frozenset()
    """(pid inside, target) of descriptors and mappings."""
    addresses: frozenset[bytes] = frozenset()
    """Remote socket addresses, packed like a sockaddr."""
    passes: int = 0
    busy_s: float = 0.0

    @property
    def pass_ms(self) -> float:
        return 1000 * self.busy_s / self.passes if self.passes else 0.0


def of_polls(found: Polled) -> Iterator[Sight]:
    """Sights of what a poller noticed. It cannot tell a failed call, nor who opened what when."""
    for pid in {pid for pid, _ in found.commands} | {pid for pid, _ in found.programs}:
        yield Sight("fork", child_inside=pid)
    programs: dict[int, bytes] = dict(sorted(found.programs))
    for pid, argv in found.commands:
        yield Sight("exec", pid=pid, argv=argv, object=programs.get(pid))
    for pid, target in found.files:
        name = _object(target.removesuffix(b" (deleted)"))
        for event in ("open", "pass", "io"):
            yield Sight(event, pid=pid, object=name, errno=0, inside=pid)
    for address in found.addresses:
        yield Sight("connect", addr=address, errno=None)
