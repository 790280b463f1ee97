"""Nothing a box made moves a cursor, forges a line or breaks a table."""

from __future__ import annotations

from caisson_runner.report.text import one_line, printable, seconds, size
from hypothesis import given
from hypothesis import strategies as st


@given(st.binary(max_size=300))
def test_any_bytes_become_printable_text_without_control_characters(raw: bytes) -> None:
    assert printable(raw).isprintable()


@given(st.text(max_size=300))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()


def test_escapes_show_what_was_there() -> None:
    assert printable(b"a\x1b[31mb\xffc\n") == "a\\x1b[31mb\\xffc\\x0a"
    assert printable("\u202e") == "\\u202e"


def test_long_text_is_cut_with_a_mark() -> None:
    assert printable("x" * 50, limit=10) == "x" * 10 + "…"


def test_durations_and_sizes_read_as_people_write_them() -> None:
    assert [seconds(v) for v in (0.0301, 2.44, 190)] == ["30 ms", "2.4 s", "3 min 10 s"]
    assert [size(v) for v in (12, 2048, 3 << 30)] == ["12 B", "2.0 KiB", "3.0 GiB"]
