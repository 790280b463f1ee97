"""A recording served in place of the outside.

What is served is what the box of the recording was served: the same request gets the same answer. A request is the same
when method, scheme, host, port, path with query and the digest of the body are; headers do not count, since clients put
times and random numbers there. A request that was made several times gets its answers in the order they were recorded,
and from then on the last. What has no answer is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from caisson_gate.bodies import NOTHING
from caisson_gate.errors import GateError
from caisson_gate.events import JournalDamaged, is_cut, raw, read

CHUNK: Final = 1 << 16
_HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"trailer"})
Key = tuple[bytes, str, str, int, bytes, str]


class ReplayUnusable(GateError):
    """A recording that cannot be served from."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer of a recording."""

    seq: int
    """Of the recording's ``http`` event."""
    status: int
    reason: bytes
    version: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: Path | None
    length: int

    def chunks(self) -> Iterator[bytes]:
        """The body, read as it is asked for."""
        if self.body is None:
            return
        with self.body.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


class Recorded:
    """The answers of one recording."""

    def __init__(self, answers: dict[Key, list[RecordedAnswer]]) -> None:
        self._answers = answers
        self._next: dict[Key, int] = {}

    @classmethod
    def open(cls, folder: Path, same_policy: str | None = None) -> Recorded:
        """Read ``gate/`` of a bundle; ReplayUnusable says what is wrong with it.

        ``same_policy``: digest of the policy it must have been made under. A cut-off is applied when recording.
        """
        answers: dict[Key, list[RecordedAnswer]] = {}
        decided: dict[int, dict[str, Any]] = {}
        journal = folder / "events.jsonl"
        try:
            for event in read(journal):
                if same_policy is not None and event["policy_sha256"] != same_policy:
                    raise ReplayUnusable(
                        f"the recording {journal} was made under another policy, and this has a cut-off; record again"
                    )
                if event["kind"] == "http" and event.get("verdict") in ("allow", "report"):
                    decided[event["seq"]] = event
                    continue
                asked = decided.pop(event["of"], None) if event["kind"] == "http-done" else None
                answer = _answer(folder, asked, event) if asked is not None else None
                if asked is not None and answer is not None:
                    answers.setdefault(_key(asked, event), []).append(answer)
        except FileNotFoundError:
            raise ReplayUnusable(f"no recording at {journal}; name a bundle that was made with --record") from None
        except JournalDamaged as problem:
            raise ReplayUnusable(f"the recording {journal} is damaged: {problem}; record again") from None
        except (KeyError, ValueError, TypeError) as problem:
            raise ReplayUnusable(f"the recording {journal} holds an event this gate cannot read: {problem!r}") from None
        if not answers:
            raise ReplayUnusable(f"the recording {journal} holds no answer; record again with --record")
        return cls(answers)

    def find(
        self, method: bytes, scheme: str, host: str, port: int, path: bytes, body_sha256: str
    ) -> RecordedAnswer | None:
        """The answer to the request, the next one where there are several; None when there is none."""
        key: Key = (method, scheme, host, port, path, body_sha256 or NOTHING.sha256)
        answers = self._answers.get(key)
        if answers is None:
            return None
        at = self._next.get(key, 0)
        self._next[key] = at + 1
        return answers[min(at, len(answers) - 1)]


def _key(asked: dict[str, Any], done: dict[str, Any]) -> Key:
    target = asked["target"]
    digest = done.get("req_sha256", NOTHING.sha256)
    return raw(asked["method"]), target["scheme"], target["host"], target["port"], raw(target["path"]), digest


def _answer(folder: Path, asked: dict[str, Any], done: dict[str, Any]) -> RecordedAnswer | None:
    """None for an exchange that had no whole answer, or whose answer the gate made itself."""
    head = done.get("resp")
    if head is None or done.get("error") or done.get("resp_cut") or done.get("reason_code") or head["status"] < 200:
        return None
    if any(is_cut(value) for pair in head["headers"] for value in pair) or is_cut(asked["target"]["path"]):
        return None
    length = done.get("resp_len", 0)
    body = folder / "bodies" / done["resp_sha256"] if length else None
    if body is not None:
        _check(body, done["resp_sha256"])
    fields = [(raw(name), raw(value)) for name, value in head["headers"]]
    headers = [(name, value) for name, value in fields if name.lower() not in _HOP_BY_HOP]
    if raw(asked["method"]) == b"HEAD" or head["status"] == 304:
        headers += [(name, value) for name, value in fields if name.lower() == b"content-length"]
    elif head["status"] != 204:
        headers.append((b"Content-Length", b"%d" % length))
    reason = raw(head.get("reason", ""))
    return RecordedAnswer(asked["seq"], head["status"], reason, raw(head["version"]), tuple(headers), body, length)


def _check(body: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    try:
        with body.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        raise ReplayUnusable(f"{body} is missing; the recording was made without --record, or is incomplete") from None
    if digest.hexdigest() != sha256:
        raise ReplayUnusable(f"{body} is not what was recorded; use an unchanged bundle")
