"""What is signed: an in-toto Statement that says of a manifest what was watched, how completely, and what came of it.

The predicate is in-toto's runtime trace v0.1. The record itself is not in it but named by its digest. What that
predicate has no field for stands in two fields of our own, which others must ignore: ``witness`` (the law of
conservation, class by class) and ``caisson`` (the run, the verdict, policy, programs, the signer's key, and the
manifest's entry with the tags that find a changed byte in it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from caisson_runner.bundle.canonical import dumps, loads
from caisson_runner.bundle.digests import Entry, entry_of_bytes
from caisson_runner.bundle.errors import BundleDamaged
from caisson_runner.bundle.keys import PublicKey
from caisson_runner.bundle.recording import EVENTS

STATEMENT: Final = "statement.dsse.json"
SEAL: Final = "seal.json"
SEAL_FORMAT: Final = "caisson.seal/v1"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://in-toto.io/attestation/runtime-trace/v0.1"
EXTENSION_FORMAT: Final = "caisson.statement/v1"
SUBJECTS: Final = ("verdict.json", EVENTS, "state/upper.tar.zst")
"""Beside the manifest, which names everything: what others' policies will want to name by itself."""
POLICY: Final = "gate/policy.toml"
_COUNTS: Final = ("seen", "delivered", "dropped_ring", "dropped_map", "unreadable", "partial")

Read = Callable[[str], Mapping[str, Any]]
"""A JSON file of the bundle as a table; empty when it is not there."""


def statement(files: Mapping[str, Entry], manifest: bytes, read: Read, key: PublicKey, records: int) -> bytes:
    """The payload that is signed. ``files`` is the manifest's table, ``records`` how many the record has."""
    run, verdict, coverage = read("run.json"), read("verdict.json"), read("coverage.json")
    own = entry_of_bytes(manifest)
    subjects = [_described("manifest.json", own)]
    subjects += [_described(name, files[name]) for name in SUBJECTS if name in files]
    programs = _table(coverage.get("manifest"))
    return dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "monitor": _monitor(coverage, files),
                "monitoredProcess": {
                    "hostID": f"urn:caisson:signer:{key.keyid}",
                    "type": "urn:caisson:run:v1",
                    "event": str(run.get("id") or "unnamed"),
                },
                "monitorLog": {"process": [_log(files, records)]},
                "metadata": _times(run),
                "witness": _witness(coverage, records),
                "caisson": {
                    "format": EXTENSION_FORMAT,
                    "run": {
                        "id": str(run.get("id") or ""),
                        "task": _table(run.get("task")).get("id"),
                        "taskDigest": _table(run.get("task")).get("digest"),
                        "agent": _table(run.get("agent")).get("name"),
                        "engine": run.get("engine"),
                    },
                    "derivedFrom": run.get("derived_from"),
                    "verdict": {
                        "word": verdict.get("word"),
                        "lie": verdict.get("lie"),
                        "findings": [one.get("rule") for one in verdict.get("findings") or () if isinstance(one, dict)],
                    },
                    "policy": _described(POLICY, files[POLICY]) if POLICY in files else None,
                    "programs": {"digest": {"sha256": entry_of_bytes(dumps(programs)).sha256}} if programs else None,
                    "manifest": own.to_json(),
                    "key": key.to_json(),
                },
            },
        }
    )


def _described(name: str, entry: Entry) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": entry.sha256}}


def _monitor(coverage: Mapping[str, Any], files: Mapping[str, Entry]) -> dict[str, Any]:
    name, tier = coverage.get("witness") or "none", coverage.get("tier") or "none"
    monitor: dict[str, Any] = {"type": f"urn:caisson:witness:{name}:{tier}:v1"}
    if POLICY in files:
        monitor["configSource"] = _described(POLICY, files[POLICY])
    monitor["tracePolicy"] = {"hooks": list(coverage.get("hooks") or ())}
    return monitor


def _log(files: Mapping[str, Entry], records: int) -> dict[str, Any]:
    if EVENTS not in files:
        return {"eventType": "none", "records": 0}
    return {"eventType": "record", "records": records, "log": _described(EVENTS, files[EVENTS])}


def _witness(coverage: Mapping[str, Any], records: int) -> dict[str, Any]:
    """The counters of `coverage.json`, summed and by class. ``emitted`` is what the kernel saw."""
    classes = {
        str(name): {field: int(_table(one).get(field) or 0) for field in _COUNTS}
        for name, one in _table(coverage.get("counts")).items()
    }
    total = {field: sum(one[field] for one in classes.values()) for field in _COUNTS}
    return {
        "name": coverage.get("witness"),
        "tier": coverage.get("tier"),
        "complete": coverage.get("complete") is True,
        "reason": str(coverage.get("reason") or ""),
        "emitted": total["seen"],
        "delivered": total["delivered"],
        "dropped": total["dropped_ring"] + total["dropped_map"],
        "unreadable": total["unreadable"],
        "partial": total["partial"],
        "recorded": records,
        "classes": classes,
        "gaps": list(coverage.get("gaps") or ()),
        "limits": list(coverage.get("limits") or ()),
        "bootWallNs": coverage.get("boot_wall_ns"),
    }


def _times(run: Mapping[str, Any]) -> dict[str, Any]:
    """Begin and end in the one form that every reader of timestamps takes."""
    try:
        begun = datetime.fromisoformat(str(run["started"])).astimezone(UTC)
        ended = begun + timedelta(seconds=float(run["wall_s"]))
    except (KeyError, ValueError, TypeError, OverflowError):
        return {}
    return {"buildStartedOn": _stamp(begun), "buildFinishedOn": _stamp(ended)}


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def seal(envelope: bytes) -> bytes:
    """``seal.json``: what finds a changed byte in the statement's own file. It says nothing that the file does not."""
    return dumps({"format": SEAL_FORMAT, "statement": entry_of_bytes(envelope).to_json()})


def sealed(text: bytes) -> Entry | None:
    """The entry a seal holds, or None when it is damaged itself."""
    try:
        value = loads(text, SEAL)
        entry = Entry.parse(value["statement"])
    except Exception:  # whatever is wrong with it: it is no help
        return None
    return entry


def parse(payload: bytes) -> dict[str, Any]:
    """A statement of ours. Raises `BundleDamaged` when it is not one."""
    value = loads(payload, STATEMENT)
    try:
        if value["_type"] != STATEMENT_TYPE or value["predicateType"] != PREDICATE_TYPE:
            raise ValueError("it is of another type")
        if value["predicate"]["caisson"]["format"] != EXTENSION_FORMAT:
            raise ValueError(f"it is not of the form {EXTENSION_FORMAT}")
        own = Entry.parse(value["predicate"]["caisson"]["manifest"])
        PublicKey.parse(value["predicate"]["caisson"]["key"])
        witness = value["predicate"]["witness"]
        if type(witness["recorded"]) is not int or type(witness["complete"]) is not bool:
            raise ValueError("its witness does not say what was recorded")
        if value["subject"][0] != _described("manifest.json", own):
            raise ValueError("its first subject is not the manifest")
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise BundleDamaged(f"{STATEMENT} is no statement about a bundle: {error}", STATEMENT) from None
    return dict(value)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
