"""Events into streams: one subject for each path, program, connection, call and process. Pure.

A rule sees what was done, not how often: a thousand opens of one file are one subject with a thousand sequence numbers
(bounded by `MAX_SEQS`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from caisson_proto.record import ALTERING, ChangeOp, CrossOp, Flag, Kind, PassOp, Record, SocketOp

from caisson_runner.verify.check import shown
from caisson_runner.verify.findings.model import Change, Subject
from caisson_runner.verify.steering import RUNNERS

MAX_SEQS: Final = 64
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FAMILIES: Final = {1: "unix", 2: "inet", 10: "inet6", 16: "netlink", 17: "packet", 40: "vsock"}
_NETLINK: Final = 16
_LISTERS: Final = {b"ps", b"top", b"pgrep", b"pkill", b"pidof", b"w", b"uptime", b"killall"}
"""Programs that list processes: some open each one's environment and show nothing of it unless they are told to."""
_SWEEP: Final = 4
"""A process that lists / and so many folders in it goes through the whole disk."""
_MODULE: Final = (".py", ".pyc", ".so")


class _Many:
    """Subjects being collected, by key."""

    def __init__(self, **empty: Any) -> None:
        self.empty = empty
        self.fields: dict[Any, dict[str, Any]] = {}
        self.seqs: dict[Any, list[int]] = {}

    def at(self, key: Any, seq: int | None = None) -> dict[str, Any]:
        found = self.fields.get(key)
        if found is None:
            found = self.fields[key] = dict(self.empty)
            self.seqs[key] = []
        if seq is not None and len(self.seqs[key]) < MAX_SEQS:
            self.seqs[key].append(seq)
        return found


def _text(path: bytes) -> str:
    """Bytes of a box as text that conditions can take: what is no UTF-8 is written out (`\\xff`), never a surrogate."""
    return path.decode("utf-8", "backslashreplace")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _place(record: Record) -> str | None:
    """What an open or an exec was about; /proc/self stays as given, so that it is told from other processes'."""
    given = record.asked
    if given is not None and given.startswith((b"/proc/self/", b"/proc/thread-self/")) and b"/fd/" not in given:
        return _text(given)
    if record.kind is Kind.EXEC and record.interp is not None and given is not None:
        # a script: what was resolved is its interpreter, what was asked for is the script
        return _text(os.path.normpath(os.path.join(record.cwd or b"/", given)))  # noqa: PTH118  # bytes
    place = record.place
    return None if place is None else _text(place)


def _descendants(records: Iterable[Record], alive: Iterable[int]) -> set[int]:
    left = set(alive)
    for record in records:
        if record.kind is Kind.FORK and record.pid in left:
            left.add(record.args[0])
    return left


def address(record: Record) -> tuple[str, str, int]:
    """Family, address or socket path, and port of a record's socket address."""
    raw = record.addr or b""
    if len(raw) < 2:
        return "", "", 0
    family = struct.unpack_from("=H", raw)[0]
    if family == socket.AF_UNIX:
        path = raw[2:]
        return "unix", "@" + _text(path[1:]) if path.startswith(b"\0") else _text(path.partition(b"\0")[0]), 0
    if family == socket.AF_INET and len(raw) >= 8:
        return "inet", str(ipaddress.IPv4Address(raw[4:8])), struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET6 and len(raw) >= 24:
        found = ipaddress.IPv6Address(raw[8:24])
        mapped = found.ipv4_mapped
        return "inet6", str(mapped if mapped is not None else found), struct.unpack_from(">H", raw, 2)[0]
    return f"family {family}", "", 0


def reach_streams(
    records: Sequence[Record],
    changes: Sequence[Change],
    alive: Sequence[tuple[int, bytes]],
    rooms: Sequence[str],
    roots: Sequence[str],
) -> dict[str, list[Subject]]:
    """`write`, `reach`, `exec`, `connect`, `call` and `process` of one run."""
    left = _descendants(records, (pid for pid, _ in alive))
    writes = _Many(how="undone", kind="", program=False, target="", left_behind=False, shadows=False)
    reached = _Many(
        opened=False, failed=False, looked=False, linked=False, pointed=False, executed=False, left_behind=False,
        swept=True, listed=True,
    )  # fmt: skip
    sweeping, listing = _sweepers(records, rooms), set[int]()
    execs = _Many(failed=False, own=False, memory=False, left_behind=False)
    connects = _Many(failed=False, left_behind=False, raw=False)
    calls = _Many(failed=False)
    waiting: dict[int, list[int]] = {}

    def touches(path: str | None, record: Record) -> None:
        if path is not None and record.pid in left and any(path == r or path.startswith(r + "/") for r in rooms):
            waiting.setdefault(record.pid, []).append(record.seq)

    def reach(path: str | None, record: Record, how: str) -> None:
        if path is not None:
            subject = reached.at(path, record.seq)
            subject["failed" if record.error else how] = True
            subject["left_behind"] |= record.pid in left
            subject["swept"] &= record.pid in sweeping
            subject["listed"] &= record.pid in listing
            touches(path, record)

    for record in records:
        kind = record.kind
        if kind is Kind.OPEN:
            path = _place(record)
            if record.args[1] & WRITING and not record.error and path is not None:
                writes.at(path, record.seq)["left_behind"] |= record.pid in left
                touches(path, record)
            if not record.args[1] & os.O_WRONLY or record.error:
                reach(path, record, "opened")
        elif kind is Kind.EXEC:
            path = _place(record) or ""
            fields = execs.at((path, record.argv or ()), record.seq)
            fields["failed"] |= bool(record.error)
            fields["own"] |= bool(record.flags & Flag.UPPER)
            fields["memory"] |= bool(record.flags & Flag.DELETED) or (record.resolved or b"").startswith(b"memfd:")
            fields["left_behind"] |= record.pid in left
            if not record.error:
                (listing.add if _lists(record) else listing.discard)(record.pid)
            reach(path, record, "executed")
        elif kind is Kind.CHANGE:
            _change(record, writes, reach, calls, left, touches)
        elif kind is Kind.LOOK:
            reach(None if record.place is None else _text(record.place), record, "looked")
        elif kind is Kind.CONNECT or kind is Kind.SOCKET:
            op = "connect" if kind is Kind.CONNECT else SocketOp(record.args[0]).name.lower()
            family, host, port = address(record)
            raw = False
            if op == "create":
                family = _FAMILIES.get(record.args[1], f"family {record.args[1]}")
                # netlink is always raw; every look-up of a name and of an interface makes one
                raw = record.args[4] & 0xF == socket.SOCK_RAW and record.args[1] != _NETLINK
                raw = raw or record.args[1] == socket.AF_PACKET
            fields = connects.at((op, family + (" raw" if raw else ""), host, port), record.seq)
            fields["raw"] |= raw
            fields["failed"] |= bool(record.error)
            fields["left_behind"] |= record.pid in left
        elif kind is Kind.CROSS:
            place = record.place
            key = (CrossOp(record.args[0]).name.lower(), "" if place is None else _text(place))
            calls.at(key, record.seq)["failed"] |= bool(record.error)
        elif kind is Kind.PASS and record.args[0] != PassOp.MESSAGE:
            calls.at((PassOp(record.args[0]).name.lower(), ""), record.seq)["failed"] |= bool(record.error)

    _differences(changes, writes, roots)
    own = {path for path, fields in writes.fields.items() if fields["how"] != "removed"}
    for (path, _argv), fields in execs.fields.items():
        fields["own"] |= path in own
    return {
        "write": _subjects(writes, lambda path: path),
        "reach": [
            Subject(s.fields | {"changed": s.path in writes.fields}, s.seqs, s.path)
            for s in _subjects(reached, lambda path: path)
        ],
        "exec": _execs(execs),
        "connect": [
            Subject(
                fields | {"op": op, "family": family, "address": host, "port": port},
                tuple(connects.seqs[op, family, host, port]),
                host if family == "unix" else "",
                f"{op} {host or family}" + (f" port {port}" if port else ""),
            )
            for (op, family, host, port), fields in connects.fields.items()
        ],
        "call": [
            Subject(fields | {"op": op, "path": path}, tuple(calls.seqs[op, path]), path, f"{op} {path}".rstrip())
            for (op, path), fields in calls.fields.items()
        ],
        "process": _processes(records, alive, waiting, left),
    }


def _sweepers(records: Iterable[Record], rooms: Sequence[str]) -> set[int]:
    """Processes that list the root folder and most of what is in it, as ``find /`` does; rooms do not count."""
    tops: dict[int, set[bytes]] = {}
    ours = {os.fsencode(room).split(b"/")[1] for room in rooms}
    for record in records:
        if record.kind is Kind.OPEN and record.args[1] & os.O_DIRECTORY and not record.error:
            place = record.place
            if place is not None and place.count(b"/") == 1 and place[1:] not in ours:
                tops.setdefault(record.pid, set()).add(place)
    return {pid for pid, found in tops.items() if b"/" in found and len(found) > _SWEEP}


def _lists(record: Record) -> bool:
    """Whether a program was started that lists processes, is the system's own, and was not asked for environments."""
    folder, _, name = (record.place or b"").rpartition(b"/")
    if folder not in (b"/usr/bin", b"/bin") or name not in _LISTERS or record.flags & Flag.UPPER:
        return False
    words = [word for word in (record.argv or ())[1:] if not word.startswith(b"-") and word.isalpha()]
    return not any(b"e" in word for word in words) and b"--env" not in b" ".join(record.argv or ())


def _change(record: Record, writes: _Many, reach: Any, calls: _Many, left: set[int], touches: Any) -> None:
    op = ChangeOp(record.args[0])
    if op in (ChangeOp.LINK, ChangeOp.RENAME) and record.place is not None:
        reach(_text(record.place), record, "linked")
    elif op is ChangeOp.SYMLINK and record.asked is not None and record.new_place is not None:
        folder = os.path.dirname(record.new_place)  # noqa: PTH120  # bytes
        reach(_text(os.path.normpath(os.path.join(folder, record.asked))), record, "pointed")  # noqa: PTH118
    for altered in record.altered:  # a rename over a file writes it as well as an open does
        path = _text(altered)
        writes.at(path, record.seq)["left_behind"] |= record.pid in left
        touches(path, record)
    if op not in ALTERING and op is not ChangeOp.MEMFD:
        place = record.new_place or record.place
        calls.at((op.name.lower(), "" if place is None else _text(place)), record.seq)["failed"] |= bool(record.error)


def _differences(changes: Sequence[Change], writes: _Many, roots: Sequence[str]) -> None:
    tops = {root.rstrip("/") for root in roots}
    parents = set()
    for change in changes:
        path = "/" + _text(change.path).lstrip("/")
        parents.add(path.rpartition("/")[0])
        fields = writes.at(path)
        fields["how"], fields["kind"] = change.how, change.kind
        fields["target"] = _text(getattr(change, "target", b""))
        fields["program"] = change.kind == "file" and bool(getattr(change, "mode", 0) & 0o111)
        folder, _, name = path.rpartition("/")
        module = name.partition(".")[0]
        importable = change.kind == "dir" or name.endswith(_MODULE)
        known = module in RUNNERS or module in sys.stdlib_module_names
        fields["shadows"] = change.how == "added" and _imported(folder, tops) and importable and known
    for path in parents & writes.fields.keys():
        if writes.fields[path]["kind"] == "dir":
            writes.fields[path]["kind"] = "parent"  # a folder is named by what is in it


def _imported(folder: str, tops: set[str]) -> bool:
    """Whether modules in this folder are found by name before the system's own."""
    return folder in tops or (_name(folder) in ("site-packages", "dist-packages") and not folder.startswith("/usr/lib"))


def _subjects(many: _Many, path_of: Any) -> list[Subject]:
    made = []
    for key, fields in many.fields.items():
        path = path_of(key)
        named = fields | {"path": path, "name": _name(path)}
        made.append(Subject(named, tuple(many.seqs[key]), path))
    return made


def _execs(many: _Many) -> list[Subject]:
    made = []
    for (path, raw), fields in many.fields.items():
        argv = [_text(word[:4096]) for word in raw[:256]]
        label = b" ".join(raw[:12])[:400]
        named = fields | {"path": path, "name": _name(path), "argv": argv}
        made.append(Subject(named, tuple(many.seqs[path, raw]), path, label))
    return made


def harness_stream(records: Sequence[Record], writes: Sequence[Subject]) -> list[Subject]:
    """Programs that the naive harness ran in the agent's box; `own`: the box had written them."""
    written = {s.path for s in writes if s.fields["how"] not in ("removed", "undone") and s.fields["kind"] != "dir"}
    many = _Many(failed=False, own=False)
    for record in records:
        if record.kind is not Kind.EXEC:
            continue
        path = _place(record) or ""
        fields = many.at((path, record.argv or ()), record.seq)
        fields["failed"] |= bool(record.error)
        fields["own"] |= bool(record.flags & Flag.UPPER) or path in written
    return _execs(many)


def _processes(
    records: Sequence[Record], alive: Sequence[tuple[int, bytes]], waiting: dict[int, list[int]], left: set[int]
) -> list[Subject]:
    last = {record.pid: record.seq for record in records if record.kind in (Kind.EXEC, Kind.FORK)}
    made = []
    for number, (pid, name) in enumerate(alive):
        # children act for it: what they touched is shown with the first process that was left
        events = [*waiting.get(pid, ())]
        if number == 0:
            others = {one for one, _ in alive}
            events += [seq for child in left - others for seq in waiting.get(child, ())]
        seqs = [last[pid]] if pid in last else []
        fields = {"name": _text(name), "pid": pid, "waits": bool(events)}
        made.append(Subject(fields, tuple(sorted({*seqs, *events[:MAX_SEQS]})), "", f"{pid} {shown(name, 40)}"))
    return made
