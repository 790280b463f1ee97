"""`caisson-run bundle diff`: what one did and the other did not, and nothing that is only chance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bundle_sample as sample
import pytest
from caisson_proto.record import Kind, Record
from caisson_runner.bundle import Bundle, BundleWriter, StoredChange
from caisson_runner.bundle.difference import difference, settled
from caisson_runner.bundle.errors import BundleError
from caisson_runner.cli import cli
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st


def write(
    target: Path,
    records: Sequence[Record],
    changes: Sequence[StoredChange] = (),
    run: dict[str, Any] | None = None,
    verdict: dict[str, Any] | None = None,
) -> Bundle:
    events = target.parent / "events.bin"
    events.write_bytes(b"".join(map(sample.encode, records)))
    with BundleWriter(target) as writer:
        writer.add_json("run.json", {**sample.RUN, **(run or {})})
        writer.add_json("verdict.json", {**sample.VERDICT, **(verdict or {})})
        writer.add_json("coverage.json", sample.coverage(list(records)))
        writer.add_events(events)
        writer.add_changes(list(changes))
    return Bundle.open(target)


def later(records: Sequence[Record]) -> list[Record]:
    """The same deeds of other processes at another time."""
    return [
        replace(
            one, pid=one.pid + 1000, tid=one.tid + 1000, ppid=one.ppid + 1000, time_ns=one.time_ns * 3,
            start_ns=one.start_ns + 5, parent_start_ns=one.parent_start_ns + 5,
            args=(one.args[0] + 1000, one.args[1], one.args[2] + 5, *one.args[3:]) if one.kind is Kind.FORK
            else one.args,
        )
        for one in records
    ]  # fmt: skip


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bundle", "diff", *map(str, arguments)])


def opened(path: bytes, pid: int = 7, error: int = 0, flags: int = 0, seq: int = 0) -> Record:
    return Record(Kind.OPEN, seq, 5, pid, pid, start_ns=pid, given=path, error=error, args=(0, flags, 0, 0, 0, 257))


def test_pids_and_times_are_no_difference(tmp_path: Path) -> None:
    a = write(tmp_path / "a", sample.story(), sample.CHANGES)
    b = write(tmp_path / "b", later(sample.story()), sample.CHANGES, {"harness_pids": []})
    done = call(a.root, b.root)
    assert done.exit_code == 0, done.stdout
    assert "no difference" in done.stdout


def test_each_kind_of_deed_is_told_on_its_side_with_the_event_that_shows_it(tmp_path: Path) -> None:
    story = sample.story()
    a = write(tmp_path / "a", story)
    b = write(tmp_path / "b", [one for one in story if one.seq in (1, 2)])
    done = call(a.root, b.root, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    sections = {name: {one["what"]: one["first_seq"] for one in side["only_a"]}
                for name, side in found["sections"].items()}  # fmt: skip
    assert all(not side["only_b"] for side in found["sections"].values())
    assert any(text.startswith("python3 ") and seq == 4 for text, seq in sections["commands"].items())
    assert sections["commands refused"] == {"/nope  ENOENT": 3}
    assert list(sections["files written"].values()) == [6]
    assert sections["files changed otherwise"] == {"rename /app/a.tmp -> /app/conftest.py": 7, "unlink /app/gone": 8}
    assert sections["not there or refused"] == {"read /tests/test.sh  ENOENT": 5, "stat /solution  ENOENT": 9}
    assert {"192.0.2.1:443  ENETUNREACH", "[2001:db8::1]:53  ok"} <= set(sections["connects"])
    assert "ENOENT of exec" in sections["errors"]
    assert len(sections["sockets, descriptors, crossings"]) == 3


def test_final_states_findings_and_verdicts_are_compared(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [], sample.CHANGES)
    changed = [replace(sample.CHANGES[0], sha256="f" * 64), *sample.CHANGES[1:2]]
    b = write(tmp_path / "b", [], changed, verdict={"word": "pass", "lie": False, "findings": []})
    found = difference(a, b)
    assert ("verdict", "fail", "pass") in found.words and ("lie", "yes", "no") in found.words
    assert [path for path, _, _ in found.state] == ["/app/conftest.py", "/app/gone"]
    assert found.state[1][1:] == ("removed file", "as in the snapshot")
    assert len(found.findings.only_a) == 1 and not found.findings.only_b
    assert not found.same


def test_agents_of_another_name_that_did_the_same_do_not_differ(tmp_path: Path) -> None:
    a = write(tmp_path / "a", sample.story())
    b = write(tmp_path / "b", sample.story(), run={"agent": {"name": "other"}})
    found = difference(a, b)
    assert found.same and found.who == ("cheat-conftest at add-mul", "other at add-mul")


def test_what_the_harness_did_is_not_the_agents_doing(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [opened(b"/app/x", 9)], run={"harness_pids": [9]})
    b = write(tmp_path / "b", [])
    assert difference(a, b).same


def test_reads_of_the_system_are_counted_and_told_when_asked_for(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [opened(b"/usr/lib/x"), opened(b"/app/__pycache__/x.pyc", flags=65)])
    b = write(tmp_path / "b", [])
    found = difference(a, b)
    assert found.same and found.hidden == 2
    assert "2 differences in caches" in call(a.root, b.root).stdout
    assert not difference(a, b, everything=True).same
    assert call(a.root, b.root, "--all").exit_code == 1


def test_a_system_file_that_was_written_is_no_noise(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [opened(b"/etc/ld.so.preload", flags=65)])
    assert not difference(a, write(tmp_path / "b", [])).same


def test_long_things_that_begin_alike_are_not_taken_for_one(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [opened(b"/app/" + b"x" * 1000 + b"1")])
    b = write(tmp_path / "b", [opened(b"/app/" + b"x" * 1000 + b"2")])
    found = {one.name: one for one in difference(a, b).sections}["files read"]
    assert len(found.only_a) == len(found.only_b) == 1


def test_an_incomplete_record_is_said_to_be_one(tmp_path: Path) -> None:
    a, b = sample.bundle(tmp_path / "a"), sample.bundle(tmp_path / "b", dropped=3)
    assert any("the record of B is not complete" in note for note in difference(a, b).notes)


def test_nothing_of_a_box_reaches_a_terminal_unescaped(tmp_path: Path) -> None:
    a = write(tmp_path / "a", sample.story(), sample.CHANGES)
    shown = call(a.root, write(tmp_path / "b", []).root).stdout
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_what_is_no_bundle_is_the_callers_mistake(tmp_path: Path) -> None:
    failed = call(write(tmp_path / "a", []).root, tmp_path).exception
    assert isinstance(failed, BundleError) and failed.exit_code == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"/proc/12/maps", b"/proc/3456/maps"),
        (b"/proc/self/task/7/comm", b"/proc/self/task/8/comm"),
        (b"pipe:[71]", b"pipe:[4]"),
        (b"/tmp/tmpab12_x9z/f", b"/tmp/tmpzzzzzzzz/f"),
        (b"/tmp/tmp.AbC123xyZ0", b"/tmp/tmp.0123456789"),
        (b"/app/__pycache__/a.pyc.1403", b"/app/__pycache__/a.pyc.77"),
    ],
)
def test_names_that_are_new_in_every_run_are_settled(one: bytes, other: bytes) -> None:
    assert settled(one) == settled(other) != one


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_settling_twice_changes_nothing_more(raw: bytes) -> None:
    assert settled(settled(raw)) == settled(raw)
    if raw.isascii() and not any(byte in raw for byte in b"0123456789_") and b"tmp" not in raw:
        assert settled(raw) == raw


reads = st.lists(st.tuples(st.sampled_from([b"/app/a", b"/app/b", b"/x"]), st.sampled_from([0, 2])), max_size=6)


@settings(deadline=None, max_examples=15)
@given(reads, reads)
def test_the_other_way_round_the_sides_change_places(
    tmp_path_factory: pytest.TempPathFactory, one: list[tuple[bytes, int]], two: list[tuple[bytes, int]]
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    a, b = (write(folder / name, [opened(path, error=error, seq=at + 1) for at, (path, error) in enumerate(rows)])
            for name, rows in (("a", one), ("b", two)))  # fmt: skip
    there, back = difference(a, b), difference(b, a)
    assert there.same is back.same is (set(one) == set(two))
    for here, other in zip(there.sections, back.sections, strict=True):
        assert (set(here.only_a), set(here.only_b), here.both) == (set(other.only_b), set(other.only_a), other.both)
