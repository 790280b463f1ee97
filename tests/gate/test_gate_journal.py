"""The journal: what it promises to whoever reads it later."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from caisson_gate.events import MAX_LIST, Journal, JournalDamaged, bounded, is_cut, raw, read
from hypothesis import given
from hypothesis import strategies as st


def journal(folder: Path) -> Journal:
    return Journal(folder / "events.jsonl", run="r", box="b", policy_sha256="0" * 64)


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    made = journal(tmp_path)
    assert made.append("dns", name_dns=b"a.test", verdict="allow", rule="r1", orig_dst=("198.18.1.0", 53)) == 1
    assert made.append("http", method=b"GET", verdict="deny", reason_code="not_allowed", status=None) == 2
    made.close()
    first, second = read(made.path)
    assert (first["kind"], first["name_dns"], first["orig_dst"]) == ("dns", "a.test", ["198.18.1.0", 53])
    assert (second["run"], second["box"], second["reason_code"]) == ("r", "b", "not_allowed")
    assert "status" not in second
    assert second["t_mono"] >= first["t_mono"]


def test_a_line_that_was_changed_is_named(tmp_path: Path) -> None:
    made = journal(tmp_path)
    for number in range(5):
        made.append("http", verdict="allow", rule=str(number))
    made.close()
    lines = made.path.read_bytes().splitlines()
    lines[2] = lines[2].replace(b'"rule":"2"', b'"rule":"9"')
    made.path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(JournalDamaged) as caught:
        list(read(made.path))
    assert caught.value.line == 4  # the line itself is well formed; the next one's digest tells


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_a_line_that_is_missing_is_named(tmp_path: Path, gone: int) -> None:
    made = journal(tmp_path)
    for number in range(5):
        made.append("http", rule=str(number))
    made.close()
    lines = made.path.read_bytes().splitlines(keepends=True)
    del lines[gone]
    made.path.write_bytes(b"".join(lines))
    with pytest.raises(JournalDamaged) as caught:
        list(read(made.path))
    assert caught.value.line == gone + 1


def test_same_content_spelled_otherwise_is_refused(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.append("http", rule="a")
    made.close()
    made.path.write_text(json.dumps(json.loads(made.path.read_text())) + "\n")
    with pytest.raises(JournalDamaged, match="canonical"):
        list(read(made.path))


def test_a_torn_end_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.append("http", rule="a")
    made.append("http", rule="b")
    made.close()
    made.path.write_bytes(made.path.read_bytes()[:-10])
    assert [event["rule"] for event in read(made.path, torn_end=True)] == ["a"]
    with pytest.raises(JournalDamaged, match="no end"):
        list(read(made.path))


def test_every_event_is_on_disk_before_append_returns(tmp_path: Path) -> None:
    made = journal(tmp_path)
    for number in range(3):
        made.append("http", rule=str(number))
        assert len(list(read(made.path))) == number + 1


def test_a_closed_journal_takes_nothing_more(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.close()
    made.close()
    with pytest.raises(ValueError, match="closed"):
        made.append("http")


def test_two_journals_never_share_a_file(tmp_path: Path) -> None:
    journal(tmp_path)
    with pytest.raises(FileExistsError):
        journal(tmp_path)


@given(st.binary(max_size=300))
def test_any_bytes_come_back_and_the_line_stays_one_line_of_ascii(value: bytes) -> None:
    shown = bounded(value)
    line = json.dumps(shown)
    assert line.isascii() and "\n" not in line
    assert raw(shown) == value


@pytest.mark.parametrize("value", [b"a\nb", b"\x1b[2J", "\u202eabc".encode(), b"\xff", b"\x00", "\u2028".encode()])
def test_what_could_fool_a_terminal_is_base64(value: bytes) -> None:
    assert isinstance(bounded(value), dict)


def test_long_strings_and_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    shown = bounded(b"x" * 100_000)
    assert is_cut(shown) and shown["len"] == 100_000 and len(raw(shown)) == 2048
    made = journal(tmp_path)
    made.append("http", req={"headers": [[b"a", b"b"]] * (MAX_LIST + 7)})
    made.close()
    (event,) = read(made.path)
    assert event["req"]["headers"][-1] == {"left_out": 7}


def test_a_full_disk_leaves_no_torn_line_and_the_journal_goes_on(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.append("http", rule="a")
    size = made.path.stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
    try:
        with pytest.raises(OSError):
            made.append("http", rule="lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert made.path.stat().st_size == size
    made.append("http", rule="b")
    made.close()
    assert [event["rule"] for event in read(made.path)] == ["a", "b"]
