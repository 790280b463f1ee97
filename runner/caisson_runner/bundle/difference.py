"""What one run did that another did not. Pure but for reading the two bundles, once each, in bounded memory.

Compared is *whether* something was done, not when, how often or by which pid: names that are new in every run (pids in
``/proc``, temporary files, pipes) are replaced by a word that says so.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from caisson_proto.record import Kind, Record

from caisson_runner.bundle.activity import MAX_ITEMS, address
from caisson_runner.bundle.canonical import escape
from caisson_runner.bundle.network import asked_of
from caisson_runner.bundle.places import Places, below, target, writes
from caisson_runner.bundle.reader import Bundle, StoredChange
from caisson_runner.export.jsonl import op_name
from caisson_runner.export.scene import Actors, Scene
from caisson_runner.export.text import errno_name, quoted

LIMIT: Final = 400
"""Bytes of one thing that are kept; of a longer one its digest as well, so that no two are taken for one."""

MAX_STATE: Final = 200_000
"""Paths of a final state that are compared."""

SECTIONS: Final = (
    "commands", "commands refused", "files read", "files written", "files changed otherwise", "looked at",
    "not there or refused", "connects", "asked of the gate", "sockets, descriptors, crossings", "errors",
)  # fmt: skip

_SYSTEM: Final = (b"/usr", b"/lib", b"/lib64", b"/bin", b"/sbin", b"/etc", b"/proc", b"/sys", b"/dev")
_FRESH: Final = (
    (re.compile(rb"/proc/\d+"), b"/proc/PID"),
    (re.compile(rb"/task/\d+"), b"/task/TID"),
    (re.compile(rb"\b(pipe|socket|anon_inode):\[\d+\]"), rb"\1:[N]"),
    (re.compile(rb"\btmp(?:[a-z0-9_]{8}|\.[A-Za-z0-9]{6,12})(?![A-Za-z0-9_])"), b"tmpNAME"),
    (re.compile(rb"/pytest-of-([^/]+)/pytest-\d+"), rb"/pytest-of-\1/pytest-N"),
    (re.compile(rb"\.pyc\.\d+\Z"), b".pyc.N"),
)


def settled(raw: bytes) -> bytes:
    """A path or an argument without what is new in every run."""
    for pattern, word in _FRESH:
        raw = pattern.sub(word, raw)
    return raw


@dataclass(slots=True)
class Done:
    """How often something was done, and the first event that shows it; 0 where no event does."""

    count: int = 0
    first_seq: int = 0


@dataclass(slots=True)
class Deeds:
    """What one run did, by section; ``noise`` are sections of reads of the system, caches and scratch files."""

    sections: dict[str, dict[str, Done]] = field(default_factory=lambda: {name: {} for name in SECTIONS})
    noise: dict[str, dict[str, Done]] = field(default_factory=lambda: {name: {} for name in SECTIONS})
    missed: Counter[str] = field(default_factory=Counter)

    def add(self, section: str, text: str, seq: int = 0, noise: bool = False) -> None:
        """Counts it; what is beyond `MAX_ITEMS` of a section is counted as missed."""
        table = (self.noise if noise else self.sections)[section]
        done = table.get(text)
        if done is None:
            if len(table) >= MAX_ITEMS:
                self.missed[section] += 1
                return
            done = table[text] = Done(first_seq=seq)
        done.count += 1


def deeds(records: Iterable[Record], places: Places, harness: frozenset[int] = frozenset()) -> Deeds:
    """Of the agent's own processes; not of those that the naive harness started, ``harness``, and their children."""
    found = Deeds()
    actors = Actors(harness)
    for record in records:
        if not actors.before(record).harness:
            _note(found, record, places)
        actors.after(record)
    return found


def _note(found: Deeds, record: Record, places: Places) -> None:
    kind = record.kind.name.lower()
    error = errno_name(record.error) or ""
    if error:
        found.add("errors", f"{error} of {kind}", record.seq)
    if record.kind in (Kind.FORK, Kind.EXIT):
        return
    if record.kind is Kind.EXEC:
        argv = b" ".join(map(quoted, record.argv)) if record.argv else record.asked or b"?"
        found.add(f"commands{' refused' if error else ''}", _text(argv, error), record.seq)
    elif record.kind is Kind.CONNECT:
        found.add("connects", _text(address(record.args[0], record.args[1], record.addr), error or "ok"), record.seq)
    elif record.kind in (Kind.SOCKET, Kind.PASS, Kind.CROSS):
        raw = address(record.args[1], record.args[2], record.addr) if record.addr is not None else record.place or b""
        text = _text(f"{kind} {op_name(record)} ".encode() + raw, error)
        found.add("sockets, descriptors, crossings", text, record.seq)
    else:
        _note_file(found, record, places, error)


def _note_file(found: Deeds, record: Record, places: Places, error: str) -> None:
    path = target(record) if record.kind is Kind.OPEN else record.place
    ends = [end for end in (path or record.asked, record.new_place or record.name) if end]
    op = op_name(record)
    writing = record.kind is Kind.CHANGE or writes(record)
    verb = op or ("write" if writing else "read")
    if error:
        section = "not there or refused"
    elif record.kind is Kind.OPEN:
        section = "files written" if writing else "files read"
    else:
        section = "files changed otherwise" if writing else "looked at"
    prefix = b"" if record.kind is Kind.OPEN and not error else verb.encode() + b" "
    noise = all(_noise(end, places, writing and not error) for end in ends)
    found.add(section, _text(prefix + b" -> ".join(ends), error), record.seq, noise)


def _noise(path: bytes, places: Places, writing: bool) -> bool:
    tags = places.tags(path)
    if "cache" in tags or "scratch" in tags:
        return True
    if writing or {"test", "config", "room"} & set(tags):
        return False
    return any(below(path, root) for root in _SYSTEM) or path in (b"/", b".")


def _text(raw: bytes, end: str) -> str:
    raw = settled(raw)
    digest = f"… (sha256 {hashlib.sha256(raw).hexdigest()[:12]})" if len(raw) > LIMIT else ""
    return escape(raw[:LIMIT]) + digest + (f"  {end}" if end else "")


@dataclass(frozen=True, slots=True)
class Section:
    """What of one kind was done in only one of the two, with how often and the first event; and how much in both."""

    name: str
    only_a: Mapping[str, Done]
    only_b: Mapping[str, Done]
    both: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that differs. ``who``: A's and B's agent and task, which may, and are no difference of deeds.

    ``words`` are answers that differ: name, A's, B's.
    """

    who: tuple[str, str]
    words: tuple[tuple[str, str, str], ...]
    findings: Section
    sections: tuple[Section, ...]
    state: tuple[tuple[str, str, str], ...]
    """Path, what A left of it, what B left of it."""
    hidden: int
    """Differences in reads of the system, caches and scratch files that are not told."""
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Nothing that is told differs."""
        told = (self.findings, *self.sections)
        return not self.words and not self.state and not any(one.only_a or one.only_b for one in told)


def difference(a: Bundle, b: Bundle, everything: bool = False) -> Difference:
    """Compares two bundles; ``everything``: with reads of the system, caches and scratch files."""
    sides = [(bundle, Scene.of(bundle)) for bundle in (a, b)]
    found = [_of(bundle, scene) for bundle, scene in sides]
    places = [_places(scene) for _, scene in sides]
    sections, hidden = [], 0
    for name in SECTIONS:
        one, two = (side.sections[name] for side in found)
        noise = _section(name, *(side.noise[name] for side in found))
        if everything:
            one, two = ({**side.sections[name], **side.noise[name]} for side in found)
        else:
            hidden += len(noise.only_a) + len(noise.only_b)
        sections.append(_section(name, one, two))
    left = [_state(bundle.changes(), side.missed) for bundle, side in zip((a, b), found, strict=True)]
    state = []
    for path in sorted({*left[0], *left[1]}):
        before, after = left[0].get(path, "as in the snapshot"), left[1].get(path, "as in the snapshot")
        if before == after:
            continue
        if everything or not {"cache", "scratch"} & set(places[0].tags(path)):
            state.append((escape(path), before, after))
        else:
            hidden += 1
    return Difference(
        (_who(sides[0][1]), _who(sides[1][1])),
        tuple(_words(*(scene for _, scene in sides))),
        _section("findings", *(_findings(scene) for _, scene in sides)),
        tuple(sections),
        tuple(state),
        hidden,
        tuple(_notes(sides, found)),
    )


def _of(bundle: Bundle, scene: Scene) -> Deeds:
    found = deeds(bundle.records(), _places(scene), scene.harness())
    for one in asked_of(bundle.root):
        found.add("asked of the gate", _text(f"{one.verdict} {one.what}".encode("utf-8", "replace"), one.reason))
    return found


def _who(scene: Scene) -> str:
    return f"{scene.agent or 'nobody known'} at {scene.task or 'no task'}"


def _places(scene: Scene) -> Places:
    task = scene.run.get("task")
    task = task if isinstance(task, dict) else {}
    tests = [str(path).encode("utf-8", "surrogateescape") for path in task.get("visible_tests") or ()]
    return Places(str(task.get("workspace") or "/app").encode("utf-8", "surrogateescape"), tests)


def _section(name: str, a: Mapping[str, Done], b: Mapping[str, Done]) -> Section:
    only_a = {text: done for text, done in a.items() if text not in b}
    only_b = {text: done for text, done in b.items() if text not in a}
    return Section(name, only_a, only_b, len(a) - len(only_a))


def _state(changes: Iterable[StoredChange], missed: Counter[str]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for one in changes:
        if len(found) >= MAX_STATE:
            missed["changed paths"] += 1
            continue
        parts = [one.how, one.kind]
        if one.how != "removed":
            parts.append(f"{one.mode:04o}")
        if one.kind == "file" and one.how != "removed":
            parts.append(f"{one.size} bytes, sha256 {one.sha256[:12]}")
        if one.target:
            parts.append("to " + escape(one.target[:LIMIT]))
        found[b"/" + settled(one.path.lstrip(b"/"))] = " ".join(parts)
    return found


def _findings(scene: Scene) -> dict[str, Done]:
    found = {}
    for one in scene.findings:
        paths = one.get("paths") or ()
        where = ": " + ", ".join(_plain(path) for path in list(paths)[:3]) if paths else ""
        seqs = one.get("seqs") or ()
        first = seqs[0] if seqs and isinstance(seqs[0], int) else 0
        found[f"{_plain(one.get('severity'))} {_plain(one.get('rule'))}{where}"] = Done(1, first)
    return found


def _words(a: Scene, b: Scene) -> Iterable[tuple[str, str, str]]:
    def answers(scene: Scene) -> dict[str, str]:
        told = {"verdict": _plain(scene.verdict.get("word"))}
        for name in ("trusting", "ground_truth", "held_out"):
            check = scene.verdict.get(name)
            passed = check.get("passed") if isinstance(check, dict) else None
            told[name.replace("_", " ")] = "pass" if passed is True else "fail" if passed is False else "–"
        told["lie"] = "yes" if scene.verdict.get("lie") else "no"
        end = scene.run.get("agent_end")
        end = end if isinstance(end, dict) else {}
        told["agent's end"] = f"{_plain(end.get('outcome'))} {_plain(end.get('exit_code'))}"
        return told

    one, two = answers(a), answers(b)
    return [(name, one[name], two[name]) for name in one if one[name] != two[name]]


def _plain(value: Any) -> str:
    return escape(str(value).encode("utf-8", "surrogatepass")[:LIMIT]) if value is not None else "–"


def _notes(sides: list[tuple[Bundle, Scene]], found: list[Deeds]) -> Iterable[str]:
    for letter, (_, scene), own in zip("AB", sides, found, strict=True):
        if not scene.coverage.get("complete"):
            reason = _plain(scene.coverage.get("reason") or "events were lost, or nothing was watched")
            yield f"the record of {letter} is not complete ({reason}): what it lacks may have been done all the same"
        for name, count in own.missed.items():
            yield f"{letter}: {count} more of {name} than are compared; the record has them"
    witnesses = [_plain(scene.coverage.get("witness")) for _, scene in sides]
    if witnesses[0] != witnesses[1]:
        yield f"A was watched by {witnesses[0]}, B by {witnesses[1]}: they do not see the same"
