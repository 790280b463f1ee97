"""A program that does what the witness records, an exact number of times, at the full speed of both cores."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto.record import Kind
from caisson_tracerd import missed


def build(folder: Path) -> Path:
    """The compiled storm; the test is skipped where there is no compiler and nobody brought it along."""
    brought = os.environ.get("CAISSON_STORM")
    if brought:
        return Path(brought)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = folder / "storm"
    subprocess.run([compiler, "-O2", "-o", target, Path(__file__).with_name("storm.c")], check=True)
    return target


def heads(journal: bytes) -> tuple[Counter[int], list[int]]:
    """Records of each kind, and their numbers, from the heads alone: a storm is too much to decode in a test."""
    kinds: Counter[int] = Counter()
    numbers, at, head = [], 0, struct.Struct("<I4xIHHQ").unpack_from
    while at < len(journal):
        length, size, kind, _, number = head(journal, at)
        assert length == size, "no discarded, no half record"
        kinds[kind] += 1
        numbers.append(number)
        at += 8 + (length + 7 & ~7)
    assert at == len(journal)
    if not any(numbers):  # before Linux 5.12 no program can take a number: the position counts
        numbers = list(range(1, len(numbers) + 1))
    return kinds, numbers


def assert_conserved(counts: dict[str, pb.ClassCount], journal: bytes) -> None:
    """The law, for every class, and that what was delivered is what is in the journal, each once.

    Where nothing was dropped, the numbers have no gap.
    """
    kinds, numbers = heads(journal)
    for kind in Kind:
        count = counts[kind.name.lower()]
        assert count.seen == count.delivered + count.dropped_ring + count.dropped_map + count.unreadable, kind
        assert count.delivered == kinds[kind], kind
    numbers.sort()
    assert len(numbers) == len(set(numbers))
    seen = sum(count.seen for count in counts.values())
    assert not numbers or numbers[-1] <= seen
    if not dropped(counts):
        assert numbers == list(range(1, seen + 1))


def require_all_runs(marks: Iterable[str]) -> None:
    """The test is skipped where Linux leaves runs of the programs out and the box says so.

    From 7.x on a task may be preempted inside of a program, and the program is not run for the next one on that
    processor. Before, a run that is left out is a fault of ours and the test goes on.
    """
    told = [mark for mark in marks if mark.startswith(missed.WORDS)]
    if told and int(os.uname().release.partition(".")[0]) >= 7:
        pytest.skip(f"Linux {os.uname().release} preempts programs of tracepoints and leaves runs out; the box says so")


def dropped(counts: dict[str, pb.ClassCount]) -> int:
    return sum(count.dropped_ring + count.dropped_map + count.unreadable for count in counts.values())
