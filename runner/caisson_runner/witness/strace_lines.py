"""Reading single lines of strace's output: text in, values out, no state and no I/O.

Every function either returns values or None for a line it cannot read; none raises on garbage, because part of every
line was chosen by the box. Lines are matched from the left with quoted strings consumed whole, so that a file called
``") = 3`` cannot end a call early.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from errno import errorcode
from typing import Final

_ERRNO: Final = {name.encode(): number for number, name in errorcode.items()}

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"(?:\.\.\.)?'
_PATH: Final = rb"(?:" + _STRING + rb"|NULL|0x[0-9a-f]+)"
_NOTE: Final = rb"(?:<(?:->|[^<>]|<[^<>]*>)*+>(?:\(deleted\))?)"
_FD: Final = rb"(?:AT_FDCWD|-?\d+)" + _NOTE + rb"?"
_ARRAY: Final = (
    rb"(?:\[(?:" + _STRING + rb"|0x[0-9a-f]+|NULL|, |\.\.\.|/\*[^*\"]*\*/| )*+\]|NULL|0x[0-9a-f]+(?: /\*[^*\"]*\*/)?)"
)
_FLAGS: Final = rb"[A-Z0-9_a-fx|?/* ]+"
_AT: Final = rb"(?P<dirfd>" + _FD + rb"), "
_OLD: Final = rb"(?P<path>" + _PATH + rb")"
_NEW: Final = rb", (?P<new>" + _PATH + rb")"
_NEW_AT: Final = rb", (?P<newdirfd>" + _FD + rb"), (?P<new>" + _PATH + rb")"
_LAST: Final = rb", (?P<last>" + _FLAGS + rb"|-?\d+)"
_RESULT: Final = rb"\)\s+= (?P<result>.*)$"

_LINE: Final = re.compile(rb"(\d+) +(\d+)\.(\d{9}) (.*)\n?\Z", re.S)
_RESUMED: Final = re.compile(rb"<\.\.\. (\w+) resumed>(.*)\Z", re.S)
_HALF: Final = re.compile(rb" <(?:unfinished|pid changed to \d+) \.\.\.>\Z")
_RESULT_PARTS: Final = re.compile(
    rb"(?P<value>\?|-?\d+|0x[0-9a-f]+)(?P<note>" + _NOTE + rb")?"
    rb"(?: (?P<errno>E[A-Z0-9]+) \(.*\)| \(errno (?P<number>\d+)\)| <unavailable>)?"
    rb"(?: /\* (?P<host>\d+) in strace's PID NS \*/)?(?: \([^()]*\))?\Z"
)
_CALLS: Final = {
    name: re.compile(name.encode() + rb"\(" + arguments + _RESULT, re.S)
    for name, arguments in {
        "open": rb"(?P<path>" + _PATH + rb"), (?P<flags>" + _FLAGS + rb")(?:, (?P<mode>0[0-7]*))?",
        "creat": rb"(?P<path>" + _PATH + rb"), (?P<mode>0[0-7]*)",
        "openat": rb"(?P<dirfd>" + _FD + rb"), (?P<path>" + _PATH + rb"), (?P<flags>" + _FLAGS + rb")"
        rb"(?:, (?P<mode>0[0-7]*))?",
        "openat2": rb"(?P<dirfd>" + _FD + rb"), (?P<path>" + _PATH + rb"), "
        rb"(?:\{flags=(?P<flags>" + _FLAGS + rb")(?:, mode=(?P<mode>0[0-7]*))?[^\"{}]*\}|NULL|0x[0-9a-f]+), \d+",
        "execve": rb"(?P<path>" + _PATH + rb"), (?P<argv>" + _ARRAY + rb"), " + _ARRAY,
        "execveat": rb"(?P<dirfd>" + _FD + rb"), (?P<path>" + _PATH + rb"), (?P<argv>" + _ARRAY + rb"), " + _ARRAY
        + rb", " + _FLAGS,
        "connect": rb"(?P<fd>" + _FD + rb"), (?P<addr>\{(?:" + _STRING + rb"|[^\"{}])*+\}|NULL|0x[0-9a-f]+)"
        rb", (?P<len>-?\d+)",
        "chdir": rb"(?P<path>" + _PATH + rb")",
        "fchdir": rb"(?P<fd>" + _FD + rb")",
        "rename": _OLD + _NEW,
        "renameat": _AT + _OLD + _NEW_AT,
        "renameat2": _AT + _OLD + _NEW_AT + _LAST,
        "link": _OLD + _NEW,
        "linkat": _AT + _OLD + _NEW_AT + _LAST,
        "symlink": _OLD + _NEW,
        "symlinkat": _OLD + _NEW_AT,
        "unlink": _OLD,
        "unlinkat": _AT + _OLD + _LAST,
        "rmdir": _OLD,
        "mkdir": _OLD + _LAST,
        "mkdirat": _AT + _OLD + _LAST,
        "truncate": _OLD + _LAST,
        "ftruncate": rb"(?P<fd>" + _FD + rb")" + _LAST,
        "chmod": _OLD + _LAST,
        "fchmod": rb"(?P<fd>" + _FD + rb")" + _LAST,
        "fchmodat": _AT + _OLD + _LAST,
        "fork": rb"",
        "vfork": rb"",
        "clone": rb"(?P<clone>[^\"]*?)",
        "clone3": rb"(?P<clone>[^\"]*?)",
    }.items()
}  # fmt: skip
CALLS: Final = tuple(_CALLS)
"""The system calls the witness asks strace for."""

_CLONE_FLAGS: Final = {
    b"CLONE_VM": 0x100, b"CLONE_FS": 0x200, b"CLONE_FILES": 0x400, b"CLONE_SIGHAND": 0x800, b"CLONE_PIDFD": 0x1000,
    b"CLONE_PTRACE": 0x2000, b"CLONE_VFORK": 0x4000, b"CLONE_PARENT": 0x8000, b"CLONE_THREAD": 0x10000,
    b"CLONE_NEWNS": 0x20000, b"CLONE_SYSVSEM": 0x40000, b"CLONE_SETTLS": 0x80000, b"CLONE_PARENT_SETTID": 0x100000,
    b"CLONE_CHILD_CLEARTID": 0x200000, b"CLONE_UNTRACED": 0x800000, b"CLONE_CHILD_SETTID": 0x1000000,
    b"CLONE_NEWCGROUP": 0x2000000, b"CLONE_NEWUTS": 0x4000000, b"CLONE_NEWIPC": 0x8000000,
    b"CLONE_NEWUSER": 0x10000000, b"CLONE_NEWPID": 0x20000000, b"CLONE_NEWNET": 0x40000000, b"CLONE_IO": 0x80000000,
    b"SIGCHLD": 17,
}  # fmt: skip
CLONE_THREAD: Final = _CLONE_FLAGS[b"CLONE_THREAD"]
CLONE_VFORK: Final = _CLONE_FLAGS[b"CLONE_VFORK"] | _CLONE_FLAGS[b"CLONE_VM"]
_OPEN_FLAGS: Final = {
    name.encode(): value for name, value in vars(os).items() if name.startswith("O_") and isinstance(value, int)
} | {b"O_LARGEFILE": 0o100000, b"O_ACCMODE": 3, b"FASYNC": 0o20000, b"__O_TMPFILE": 0o20000000}
_FAMILIES: Final = {
    name.encode(): int(value) for name, value in vars(socket).items() if name.startswith("AF_")
} | {b"AF_LOCAL": 1, b"AF_FILE": 1}  # fmt: skip
_SOCKETS: Final = {b"TCP": (6, 1), b"UDP": (17, 2), b"UDPLITE": (136, 2), b"MPTCP": (262, 1), b"SCTP": (132, 1)}


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the thread in strace's pid namespace, wall-clock time, and the text after both."""

    tid: int
    wall_ns: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """What a call returned. ``value`` is None when it did not return (killed, or to be restarted)."""

    value: int | None
    error: int
    note: bytes | None
    deleted: bool
    host_pid: int | None


@dataclass(frozen=True, slots=True)
class Text:
    """A decoded string argument; None as data means that strace could not read it (a bad pointer)."""

    data: bytes | None
    cut: bool


def read_line(raw: bytes) -> Line | None:
    match = _LINE.match(raw)
    if match is None or len(match[1]) > 9 or len(match[2]) > 10:
        return None
    return Line(int(match[1]), int(match[2]) * 1_000_000_000 + int(match[3]), match[4].rstrip(b"\n"))


def call_name(body: bytes) -> str:
    """Name of the call a line begins or resumes; empty for notes about signals and exits."""
    match = _RESUMED.match(body) or re.match(rb"(\w+)\(", body)
    return match[1].decode("ascii", "replace") if match else ""


def unfinished(body: bytes) -> bytes | None:
    """The first half of a call that strace had to interrupt, else None."""
    match = _HALF.search(body[-64:])
    return body[: len(body) - len(match[0])] if match else None


def resumed(body: bytes) -> bytes | None:
    """The second half, to be put behind the first."""
    match = _RESUMED.match(body)
    return match[2] if match else None


def read_call(name: str, body: bytes) -> tuple[dict[str, bytes], Result] | None:
    """Arguments by name, as text, and the result."""
    pattern = _CALLS.get(name)
    match = pattern.match(body) if pattern else None
    parts = _RESULT_PARTS.match(match["result"]) if match else None
    if match is None or parts is None:
        return None
    value, error = parts["value"], 0
    if value == b"-1":
        number = int(parts["number"] or b"0")
        error = _ERRNO.get(parts["errno"] or b"", 0) or (number if number < 4096 else 0)
        if not error and not (parts["errno"] or b"").startswith(b"ERESTART") and not parts["number"]:
            return None
    returned = None if value == b"?" or (value == b"-1" and not error) else _returned(value)
    note, deleted = read_note(parts["note"])
    host = int(parts["host"]) if parts["host"] and len(parts["host"]) < 10 else None
    arguments = {key: text for key, text in match.groupdict().items() if text is not None and key != "result"}
    return arguments, Result(returned, error, note, deleted, host)


def _returned(value: bytes) -> int | None:
    try:
        return int(value, 0) if len(value) < 20 else None
    except ValueError:  # 007 is no number strace writes
        return None


def read_note(text: bytes | None) -> tuple[bytes | None, bool]:
    """The name strace puts behind a descriptor (``</etc/hosts>``), and whether the object has no name any more."""
    if not text or b"<" not in text:
        return None, False
    deleted = text.endswith(b"(deleted)")
    inner = text.removesuffix(b"(deleted)")
    name = unescape(inner[inner.index(b"<") + 1 : -1].partition(b"<")[0])
    if deleted and name.startswith(b"/memfd:"):
        name = name[1:]  # no path: it has no place in any tree
    return (None if b"\0" in name else name), deleted


def read_text(text: bytes) -> Text:
    """A quoted string, exact to the byte, or the mark of a pointer strace could not follow."""
    cut = text.endswith(b"...")
    body = text.removesuffix(b"...")
    if len(body) < 2 or not body.startswith(b'"'):
        return Text(None, False)
    return Text(unescape(body[1:-1]), cut)


def read_path(text: bytes) -> Text:
    """The same for what the kernel reads up to its NUL, where none can be inside."""
    found = read_text(text)
    return Text(None, True) if found.data is not None and b"\0" in found.data else found


def read_argv(text: bytes) -> tuple[tuple[bytes, ...] | None, bool]:
    """A list of strings and whether any of it is missing; None when the list itself could not be read."""
    if not text.startswith(b"["):
        return None, True
    found = [read_path(item) for item in re.findall(_STRING, text)]
    rest = re.sub(_STRING, b"", text)
    cut = any(item.cut for item in found) or b"..." in rest or b"0x" in rest
    return tuple(item.data or b"" for item in found), cut


_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(.))", re.S)
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f", b"a": b"\a", b"b": b"\b"}


def unescape(text: bytes) -> bytes:
    """Undoes the C escapes strace writes."""
    if b"\\" not in text:
        return text

    def one(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 8) & 0xFF])
        if match[2]:
            return bytes([int(match[2], 16)])
        return _LETTERS.get(match[3], match[3])

    return _ESCAPE.sub(one, text)


def read_flags(text: bytes | None, *, clone: bool = False) -> int:
    """Flags by name or number, joined by ``|``; a name from a newer strace counts nothing."""
    table = _CLONE_FLAGS if clone else _OPEN_FLAGS
    total = 0
    for word in re.findall(rb"\w+", re.sub(rb"/\*.*?\*/", b"", text or b"")):
        total |= table.get(word, 0) or _number(word)
    return total


def clone_flags(text: bytes) -> int:
    match = re.search(rb"flags=([A-Z0-9_a-fx|]+)", text)
    return read_flags(match[1], clone=True) if match else 0


def _number(word: bytes) -> int:
    try:
        return int(word, 0) & 0xFFFF_FFFF_FFFF_FFFF if len(word) < 20 else 0
    except ValueError:
        return int(word, 8) if re.fullmatch(rb"[0-7]{1,12}", word) else 0


def read_number(word: bytes) -> int:
    """A number as strace writes it: decimal, hexadecimal, or octal with a leading 0; 0 for what is none."""
    return _number(word) if re.fullmatch(rb"-?[0-9a-fx]+", word) else 0


def descriptor(text: bytes | None) -> int:
    """The number before a note; -100 for the working directory."""
    match = re.match(rb"-?\d{1,10}", text or b"AT_FDCWD")
    return int(match[0]) if match else -100


def read_socket(text: bytes) -> tuple[int, int]:
    """Protocol number and socket type of ``3<TCP:[7]>``; 0 where strace does not say."""
    note, _deleted = read_note(text)
    name = (note or b"").partition(b":")[0]
    if name.startswith(b"UNIX"):
        return 0, {b"STREAM": 1, b"DGRAM": 2, b"SEQPACKET": 5}.get(name.rpartition(b"-")[2], 0)
    return _SOCKETS.get(name.removesuffix(b"v6"), (0, 0))


def read_address(text: bytes, length: int) -> tuple[int, int, bytes | None]:
    """Family, port and the socket address rebuilt from its decoded form, as long as the caller said it was."""
    match = re.match(rb"\{sa_family=(AF_\w+|0x[0-9a-f]+|\d+)", text)
    if match is None or not 0 <= length <= 128:
        return 0, 0, None
    family = (_FAMILIES.get(match[1], 0) or _number(match[1])) & 0xFFFF
    head = struct.pack("<H", family)
    port = int(found[1]) & 0xFFFF if (found := re.search(rb"port=htons\((\d{1,6})\)", text)) else 0
    quoted = re.search(_STRING, text)
    body = read_text(quoted[0]).data or b"" if quoted else b""
    if family == socket.AF_INET and quoted:
        body = struct.pack(">H", port) + _packed(socket.AF_INET, body)
    elif family == socket.AF_INET6 and quoted:
        flow = int(found[1]) if (found := re.search(rb"flowinfo=htonl\((\d{1,10})\)", text)) else 0
        # strace names the link; a box has lo alone, which is the first of every network namespace.
        scope = re.search(rb"scope_id=(?:if_nametoindex\(\"(lo)\"\)|if_nametoindex\([^)]*\)|(\d{1,10}))", text)
        body = struct.pack(">HI", port, flow & 0xFFFF_FFFF) + _packed(socket.AF_INET6, body)
        body += struct.pack("<I", (1 if scope[1] else int(scope[2] or b"0") & 0xFFFF_FFFF) if scope else 0)
    elif family == socket.AF_UNIX and re.search(rb"sun_path=@", text):
        body = b"\0" + body
    elif family == socket.AF_NETLINK:
        words = re.search(rb"nl_pid=(\d{1,10}), nl_groups=([0-9a-fx]{1,12})", text)
        body = struct.pack("<HII", 0, int(words[1]) & 0xFFFF_FFFF, int(words[2], 16) & 0xFFFF_FFFF) if words else b""
    return family, port, (head + body).ljust(length, b"\0")[:length]


def _packed(family: int, text: bytes) -> bytes:
    try:
        return socket.inet_pton(family, text.decode("ascii"))
    except (OSError, UnicodeDecodeError):
        return bytes(4 if family == socket.AF_INET else 16)
