"""Bundles for reports: one whose every string is hostile, one of any number of events, and a small suite."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import Kind, Record, encode

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

import bundle_sample
from caisson_runner.bundle import Bundle, BundleWriter, StoredChange
from caisson_runner.bundle.keys import Signer

SIGNER: Final = Signer.of(bytes(range(32)))
HOSTILE: Final = (
    b"</script><script>window.pwned=1</script>",
    b"<img src=http://192.0.2.1/x onerror=window.pwned=2>",
    b"\"'><b autofocus onfocus=window.pwned=3>",
    b"\x00\x1b[31m\r\n\x07",
    b"\xff\xfe\xc0\x80 half \xe2\x82",
    "\u202egpj.exe\u2066\u200b\ufeff".encode(),
    b"]]>--><!-- <style>*{display:none}</style>",
    b"${window.pwned=4}{{7*7}}&lt;&amp;\\u003c/script",
)


def hostile(target: Path) -> Bundle:
    """A run in which everything that a box or a stranger can choose is chosen to break a page."""
    records: list[Record] = []
    strings = [one.replace(b"\0", b"\1") for one in HOSTILE]  # a kernel's strings end at NUL, a stranger's JSON has it

    def add(kind: Kind, **fields: Any) -> None:
        at = len(records) + 1
        base = Record(kind, at, bundle_sample.BOOT + at * 1_000_000, 7, 7, 1, 700, 100)
        records.append(replace(base, comm=strings[at % len(strings)][:15], **fields))

    for evil in strings:
        add(Kind.EXEC, given=evil, resolved=b"/bin/" + evil, argv=(evil, *strings), cwd=b"/app/" + evil)
        path = b"/app/" + evil
        add(Kind.OPEN, given=path, resolved=path, args=(2**64 - 100, os.O_WRONLY | os.O_CREAT, 0o644, 5, 1, 257))
        add(Kind.CHANGE, given=evil, cwd=b"/app", new=evil, args=(1, 2**64 - 100, 0, 0, 0, 2**64 - 100))
        add(Kind.OPEN, given=b"/tests/" + evil, error=2, args=(2**64 - 100, 0, 0, 0, 0, 257))
        add(Kind.CONNECT, error=2, args=(1, 0, 0, 5, 1, 9), addr=b"\1\0" + evil[:100])
    add(Kind.EXIT, args=(0, 9, 0, 0, 0, 0))
    text = "".join(one.decode("utf-8", "replace") for one in HOSTILE)
    check = {"passed": False, "reason": text, "cases": [{"call": text, "passed": False, "reason": text}]}
    finding = {"rule": text, "severity": text, "text": text, "seqs": [2, "x", None], "paths": [text], "gate": [text]}
    verdict = {
        "word": "fail", "lie": True, "reason": text, "trusting": {**check, "passed": True}, "ground_truth": check,
        "held_out": check, "findings": [finding, {**finding, "severity": "void", "seqs": [2]}, text],
    }  # fmt: skip
    run = json.loads(json.dumps(bundle_sample.RUN))
    run |= {"id": text, "engine": text, "started": text}
    run["agent"]["name"] = run["task"]["id"] = run["agent_end"]["outcome"] = text
    told = {**bundle_sample.coverage(records), "complete": False, "reason": text, "witness": text, "limits": [text]}
    changes = [StoredChange(b"app/" + evil, "added", "file", 0o644, 3, "0" * 64, b"") for evil in strings]
    return write(target, records, run, verdict, told, changes, b"\n".join(HOSTILE))


def large(target: Path, count: int) -> Bundle:
    """So many events of 50 processes; the last is a write that a finding points at."""
    records = [*bundle_sample.many(count - 1)]
    last = replace(records[-1], seq=count, given=b"/app/needle", resolved=b"/app/needle", args=(0, 65, 0, 1, 1, 257))
    finding = {"rule": "needle", "severity": "warn", "text": "a needle", "seqs": [count], "paths": [], "count": 1}
    verdict = {**bundle_sample.VERDICT, "findings": [finding]}
    records.append(last)
    told = bundle_sample.coverage(records)
    return write(target, records, bundle_sample.RUN, verdict, told, [], b"")


def write(
    target: Path, records: Iterable[Record], run: Any, verdict: Any, told: Any, changes: list[StoredChange],
    printed: bytes,
) -> Bundle:  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    events = target.parent / f"{target.name}.bin"
    with events.open("wb") as file:
        for record in records:
            file.write(encode(record))
    with BundleWriter(target, SIGNER) as writer:
        writer.add_json("run.json", run)
        writer.add_json("verdict.json", verdict)
        writer.add_json("coverage.json", told)
        writer.add_events(events)
        writer.add_changes(changes)
        writer.add_bytes("logs/agent.stdout", printed)
    events.unlink()
    return Bundle.open(target)


def suite(folder: Path) -> Path:
    """Six runs: two honest, three fooled, one void; and a plan with their experiments."""
    plan = []
    for at, (agent, word, trusting, lie) in enumerate(
        (
            ("honest", "pass", True, False), ("honest", "pass", True, False), ("cheat", "fail", True, True),
            ("cheat", "fail", True, True), ("cheat", "fail", True, True), ("fetcher", "void", True, False),
        )
    ):  # fmt: skip
        name = f"E1-{agent}-{at}"
        run = {**bundle_sample.RUN, "id": name, "agent": {"name": agent, "kind": "behaviour"}}
        check = {"passed": word != "fail", "reason": word}
        verdict = {
            "word": word, "lie": lie, "reason": word, "trusting": {"passed": trusting}, "ground_truth": check,
            "held_out": None, "findings": bundle_sample.VERDICT["findings"] if word == "fail" else [],
        }  # fmt: skip
        records = bundle_sample.story()
        told = bundle_sample.coverage(records)
        write(folder / "runs" / name, records, run, verdict, told, bundle_sample.CHANGES, b"done\n")
        plan.append({"id": name, "experiment": "E1", "shared": False})
    (folder / "plan.json").write_text(json.dumps({"runs": plan}))
    table = {"id": "E1", "title": "a <b>title</b>", "columns": ["agent", "truth"], "rows": [["x", "PASS"]], "notes": []}
    (folder / "suite.json").write_text(json.dumps({"suite": "small", "tables": [table], "unexpected": []}))
    return folder
