"""`caisson-run bundle events`: what is asked for, and nothing else, whatever the box wrote."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import bundle_sample as sample
import pytest
from caisson_proto.record import Kind, Record
from caisson_runner.bundle import Bundle, BundleWriter
from caisson_runner.bundle.filters import BadFilter, Filter, filter_of, moment, paths_of
from caisson_runner.cli import cli
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st


def call(bundle: Bundle, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bundle", "events", str(bundle.root), *map(str, arguments)])


def seqs(bundle: Bundle, *arguments: object) -> list[int]:
    done = call(bundle, "--json", *arguments)
    assert done.exit_code == 0, done.exception
    return [json.loads(line)["seq"] for line in done.stdout.splitlines()]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample.bundle(tmp_path / "b")


def test_every_event_is_a_line_and_json_lines_are_those_of_the_export(bundle: Bundle) -> None:
    done = call(bundle)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 1 + 17
    exported = CliRunner().invoke(cli, ["bundle", "export", str(bundle.root), "-f", "jsonl"])
    assert call(bundle, "--json").stdout == exported.stdout


def test_each_filter_gives_its_own_events(bundle: Bundle) -> None:
    assert seqs(bundle, "--pid", 7) == [1, 2, 17]
    assert seqs(bundle, "--kind", "exec", "--kind", "fork") == [1, 2, 3, 4]
    assert seqs(bundle, "--failed") == [3, 5, 9, 10, 12, 15]
    assert seqs(bundle, "--errno", "ENOENT", "--kind", "open") == [5]
    assert seqs(bundle, "--errno", "101") == [10]
    assert seqs(bundle, "--path", "/app/*") == [6, 7, 8]
    assert seqs(bundle, "--path", "/solution", "--path", "/run/*") == [9, 12]
    assert seqs(bundle, "--start", sample.BOOT + 15_000_000) == [16, 17]
    assert seqs(bundle, "--start", "+0.015", "--end", "+0.016") == [16]
    assert seqs(bundle, "--limit", 2) == [1, 2]
    assert seqs(bundle, "--kind", "connect", "--pid", 7) == []


def test_both_ends_of_a_rename_are_found_by_path(bundle: Bundle) -> None:
    assert seqs(bundle, "--path", "/app/a.tmp") == seqs(bundle, "--path", "*conftest.py") == [7]


def test_agent_and_harness_part_the_record_between_them(tmp_path: Path) -> None:
    story = [record for record in sample.story() if record.kind is not Kind.FORK]  # 8 came from outside the box
    events = tmp_path / "events.bin"
    events.write_bytes(b"".join(map(sample.encode, story)))
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_json("run.json", {**sample.RUN, "harness_pids": [8]})
        writer.add_json("coverage.json", sample.coverage(story))
        writer.add_events(events)
    bundle = Bundle.open(tmp_path / "b")
    assert seqs(bundle, "--agent") == [1, 17]
    assert seqs(bundle, "--harness") == list(range(3, 17))
    assert "[harness]" in call(bundle).stdout


def test_what_a_box_wrote_never_reaches_a_terminal_unescaped(bundle: Bundle) -> None:
    shown = call(bundle).stdout
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert "\\x1b[31m" in shown


def test_an_incomplete_record_says_so_first(tmp_path: Path) -> None:
    done = call(sample.bundle(tmp_path / "b", dropped=2))
    assert done.stderr.startswith("the record is not complete: 2 events were dropped")
    assert done.exit_code == 0


def test_an_errno_or_a_time_that_there_is_not_is_the_callers_mistake(bundle: Bundle) -> None:
    for arguments in (("--errno", "ENOSUCH"), ("--errno", "-1"), ("--start", "soon"), ("--end", "-3"), ("--end", "+x")):
        failed = call(bundle, *arguments).exception
        assert isinstance(failed, BadFilter) and failed.exit_code == 2, arguments
    assert isinstance(filter_of(errors=["enoent"]), Filter)
    assert moment("+1", 5) == 1_000_000_005


def test_a_long_record_is_not_held(tmp_path: Path) -> None:
    long = sample.bundle(tmp_path / "long", list(sample.many(20_000)))
    tracemalloc.start()
    try:
        assert len(call(long, "--path", "/nowhere").stdout.splitlines()) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20  # the records would take 16 MiB, one frame of them takes 1


@settings(deadline=None)
@given(
    st.sampled_from(list(Kind)), st.integers(0, 4), st.binary(max_size=6), st.booleans(),
    st.sets(st.sampled_from(list(Kind))), st.sets(st.integers(1, 4)), st.booleans(),
    st.one_of(st.none(), st.booleans()),
)  # fmt: skip
def test_a_filter_that_asks_for_more_gives_less(
    kind: Kind, error: int, path: bytes, own: bool, kinds: set[Kind], errors: set[int], failed: bool, who: bool | None
) -> None:
    record = Record(kind, error=error, given=path)
    narrow = Filter(frozenset(kinds), (), frozenset(errors), failed, who)
    assert Filter().wants(record, own)
    if narrow.wants(record, own):
        for wider in (Filter(kinds=narrow.kinds), Filter(errors=narrow.errors), Filter(failed=failed)):
            assert wider.wants(record, own)
    if path:
        assert path in paths_of(record)
