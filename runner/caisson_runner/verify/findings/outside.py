"""The gate's journal as streams: what was asked of the outside, and which tools of a model's provider. Pure.

What a box said stands in the journal as text or as `{"b64": …}`; here only what the gate itself found out is looked at:
canonical names, its verdicts, rules and reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from caisson_runner.verify.findings.model import MAX_POINTERS, Subject

MOST: Final = 10_000
"""Different subjects of one stream; more tell nothing new."""
_KINDS: Final = frozenset({"dns", "connect", "tls", "http", "tcp", "http-done", "ws-done"})


def outside_streams(
    events: Iterable[Mapping[str, Any]], tied: Mapping[int, int] = MappingProxyType({})
) -> dict[str, Sequence[Subject]]:
    """`outside` and `hosted` of one run, of what was asked before the verifier's phase began.

    ``tied`` leads from an event's seq to that of the record of the call behind it.
    """
    asked: dict[tuple[Any, ...], Subject] = {}
    hosted: dict[tuple[Any, ...], Subject] = {}
    requests: dict[int, tuple[str, str]] = {}
    for event in events:
        if event.get("kind") == "gate" and event.get("phase") == "verify":
            break
        kind = event.get("kind") if isinstance(event, Mapping) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            continue
        host, port, path = _where(event)
        seq = event.get("seq")
        if kind == "http" and isinstance(seq, int):
            requests[seq] = host, path
        of = event.get("of")
        if isinstance(of, int) and of in requests:  # what came of a request is told by the request's own place
            host, path = requests[of]
        reason = _text(event.get("reason_code"))
        fields = {
            "kind": _text(kind),
            "verdict": _text(event.get("verdict")),
            "rule": _text(event.get("rule")),
            "reason": reason,
            "host": host,
            "port": port,
            "method": _text(event.get("method")),
            "status": _status(event),
        }
        key = (*fields.values(), path)
        known = asked.get(key)
        if known is not None or len(asked) < MOST:
            label = f"{host or 'no host'}{path}" + (f" ({reason})" if reason else "")
            gate = (*(known.gate if known is not None else ()), *([seq] if isinstance(seq, int) else []))
            gate = gate[:MAX_POINTERS]
            seqs = tuple(sorted({tied[one] for one in gate if one in tied}))
            asked[key] = Subject(fields, seqs, host + path, label, gate)
        for tool in _list(event.get("hosted_tools")):
            said = {"kind": _text(tool.get("kind")), "name": _text(tool.get("name")), "host": host}
            if len(hosted) < MOST:
                gate = (seq,) if isinstance(seq, int) else ()
                seqs = tuple(tied[one] for one in gate if one in tied)
                hosted.setdefault(tuple(said.values()), Subject(said, seqs, host, f"{said['name']} of {host}", gate))
    return {"outside": tuple(asked.values()), "hosted": tuple(hosted.values())}


def _where(event: Mapping[str, Any]) -> tuple[str, int, str]:
    """Host, port and path that were decided on, as far as the event says."""
    target = event.get("target")
    if isinstance(target, Mapping):
        port = target.get("port")
        return _text(target.get("host")), port if isinstance(port, int) else 0, _text(target.get("path"))[:120]
    wanted = event.get("orig_dst")
    address, port = (wanted[0], wanted[1]) if isinstance(wanted, list) and len(wanted) == 2 else ("", 0)
    name = event.get("name_dns") or event.get("name_connect") or address
    return _text(name)[:260], port if isinstance(port, int) else 0, ""


def _status(event: Mapping[str, Any]) -> int:
    """The answer's status; 0 where there is none yet."""
    answer = event.get("resp")
    found = answer.get("status") if isinstance(answer, Mapping) else event.get("status")
    return found if isinstance(found, int) else 0


def _text(value: object) -> str:
    """Text of ours or harmless text of the box; what is neither is not shown."""
    return value if isinstance(value, str) else "" if value is None else "(bytes)"


def _list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
