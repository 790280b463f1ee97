"""The record layout: what is written is read back, damage is named, and both sides agree with bpf/record.h."""

from __future__ import annotations

import random
import re
import struct
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest
from caisson_proto import record
from caisson_proto.record import (
    ChangeOp,
    CrossOp,
    Flag,
    Kind,
    LookOp,
    PassOp,
    Record,
    RecordError,
    SocketOp,
    Tag,
    decode,
    decode_chunks,
    encode,
    strip_ring,
)
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = Path(__file__).parents[2] / "bpf" / "record.h"

text = st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"x"))
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
records = st.builds(
    Record,
    kind=st.sampled_from(Kind),
    seq=st.integers(1, 2**64 - 1),
    time_ns=u64,
    pid=u32,
    tid=u32,
    ppid=u32,
    start_ns=u64,
    parent_start_ns=u64,
    cgroup=u64,
    uid=u32,
    gid=u32,
    error=st.integers(0, 2**31 - 1),
    flags=st.integers(0, sum(Flag)).map(Flag),
    comm=st.binary(max_size=16).map(lambda data: data.replace(b"\0", b"c")),
    args=st.tuples(st.integers(1, 5), u64, u64, u64, u64, u64),  # the first names an operation in some kinds
    given=st.none() | text,
    given_exit=st.none() | text,
    resolved=st.none() | text,
    argv=st.none() | st.lists(text, max_size=5).map(tuple),
    cwd=st.none() | text,
    interp=st.none() | text,
    addr=st.none() | st.binary(max_size=128),
    new=st.none() | text,
    new_exit=st.none() | text,
    new_cwd=st.none() | text,
    name=st.none() | text,
)


def enum_of(name: str) -> dict[str, int]:
    body = re.search(rf"enum {name} \{{(.*?)\}};", HEADER.read_text(), re.S)
    assert body, name
    return {key: eval(value) for key, value in re.findall(r"CAISSON_(\w+) = ([^,/]+),", body[1])}


@pytest.mark.parametrize(
    ("name", "prefix", "ours"),
    [
        ("caisson_kind", "", Kind),
        ("caisson_flag", "F_", Flag),
        ("caisson_tag", "T_", Tag),
        ("caisson_change", "CHANGE_", ChangeOp),
        ("caisson_look", "LOOK_", LookOp),
        ("caisson_pass", "PASS_", PassOp),
        ("caisson_cross", "CROSS_", CrossOp),
        ("caisson_socket", "SOCKET_", SocketOp),
    ],
)
def test_names_and_numbers_are_those_of_the_kernel_side(
    name: str, prefix: str, ours: type[IntEnum] | type[IntFlag]
) -> None:
    theirs = {key.removeprefix(prefix): value for key, value in enum_of(name).items() if key != "KIND_MAX"}
    assert theirs == {item.name: item.value for item in ours}


def test_cut_bit_is_that_of_the_kernel_side() -> None:
    assert enum_of("caisson_field_flag") == {"FIELD_CUT": record.FIELD_CUT}


def test_fixed_part_is_the_struct_of_the_kernel_side() -> None:
    body = re.search(r"struct caisson_rec \{(.*?)\};", HEADER.read_text(), re.S)
    assert body
    letters = {"unsigned int": "I", "unsigned short": "H", "unsigned long long": "Q", "int": "i", "char": "s"}
    layout = ""
    for kind, names in re.findall(r"^\t((?:unsigned )?\w+(?: long| short)?(?: long)?) ([^;]+);", body[1], re.M):
        for name in names.split(","):
            count = re.search(r"\[(\d+)\]", name)
            layout += (count[1] if count else "") + letters[kind]
    assert "<" + layout == record.FIXED.format
    assert struct.calcsize("@" + layout) == record.FIXED.size == 144, "the compiler must not pad"


@given(st.lists(records, max_size=4))
@settings(max_examples=50)
def test_what_is_written_is_read_back(given_records: list[Record]) -> None:
    canonical = b"".join(map(encode, given_records))
    assert list(decode(canonical)) == given_records
    pieces = [canonical[at : at + 37] for at in range(0, len(canonical), 37)]
    assert list(decode_chunks(pieces)) == given_records


@given(st.binary(max_size=600))
@settings(max_examples=50)
def test_garbage_is_refused_and_never_crashes_the_reader(garbage: bytes) -> None:
    for read in (lambda: list(decode(garbage)), lambda: strip_ring(garbage)):
        try:
            read()
        except RecordError as error:
            assert 0 <= error.offset <= len(garbage)


def ring(canonical: bytes, *, discard: bool = False, slack: int = 0) -> bytes:
    word = (len(canonical) + slack) | (record.RING_DISCARD if discard else 0)
    body = canonical + bytes(slack)
    return record.RING_HEADER.pack(word, 7) + body + bytes(-len(body) % 8)


@given(st.lists(st.tuples(records, st.booleans(), st.integers(0, 20)), max_size=4), st.integers(0, 2**32))
@settings(max_examples=40)
def test_journal_cut_anywhere_gives_the_same_canonical_bytes(
    entries: list[tuple[Record, bool, int]], seed: int
) -> None:
    journal = b"".join(ring(encode(one), discard=discard, slack=slack) for one, discard, slack in entries)
    wanted = b"".join(encode(one) for one, discard, _slack in entries if not discard)
    rng = random.Random(seed)
    got = carry = b""
    at = 0
    while at < len(journal):
        step = rng.randint(1, 300)
        canonical, carry = strip_ring(journal[at : at + step], carry)
        got += canonical
        at += step
    assert (got, carry) == (wanted, b"")


def test_entry_that_was_never_committed_is_an_error() -> None:
    with pytest.raises(RecordError, match="not committed"):
        strip_ring(record.RING_HEADER.pack(record.RING_BUSY | 144, 0) + bytes(144))


def test_record_without_a_number_takes_its_position() -> None:
    two = encode(Record(Kind.EXIT)) * 2
    assert [one.seq for one in decode(two)] == [1, 2]
    assert [one.seq for one in decode(two, position=10)] == [11, 12]


def with_field(tag: int, data: bytes, flags: int = 0) -> bytes:
    fixed = bytearray(encode(Record(Kind.OPEN)))
    body = record.FIELD.pack(tag, flags, len(data)) + data
    body += bytes(-len(body) % 8)
    struct.pack_into("<IHH", fixed, 0, len(fixed) + len(body), Kind.OPEN, 1)
    return bytes(fixed) + body


@pytest.mark.parametrize(
    ("walk", "flags", "path"),
    [
        (b"c\0b\0a\0", 0, b"/a/b/c"),
        (b"", 0, b"/"),
        (b"\xff\n\0a\0", 0, b"/a/\xff\n"),
        (b"c\0b\0", record.FIELD_CUT, b"b/c"),
    ],
)
def test_walk_from_the_leaf_up_becomes_a_path(walk: bytes, flags: int, path: bytes) -> None:
    (resolved,) = decode(with_field(Tag.WALK, walk, flags))
    assert resolved.resolved == path
    (cwd,) = decode(with_field(Tag.CWD_WALK, walk, flags))
    assert cwd.cwd == path


@pytest.mark.parametrize(("walk", "path"), [(b"memfd:x\0", b"memfd:x"), (b"", None), (b"c\0b\0", b"b/c")])
def test_walk_that_never_reached_the_root_is_no_absolute_path(walk: bytes, path: bytes | None) -> None:
    raw = bytearray(with_field(Tag.WALK, walk))
    raw[72] = Flag.UNRESOLVED
    (one,) = decode(raw)
    assert one.resolved == path


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (with_field(Tag.WALK, b"a/b\0"), "slash"),
        (with_field(Tag.WALK, b"a\0\0"), "empty name"),
        (with_field(Tag.WALK, b"a"), "does not end with NUL"),
        (with_field(Tag.GIVEN, b"a\0b"), "NUL inside field given"),
        (with_field(Tag.ARGV, b"a\0b"), "argv does not end"),
        (with_field(99, b""), "99"),
        (encode(Record(Kind.OPEN))[:-8], "ends after 136 bytes"),
        (struct.pack("<IHH", 2**31, 1, 0) + bytes(136), "size"),
    ],
)
def test_damage_is_named(bad: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        list(decode(bad))


def test_argv_keeps_empty_arguments() -> None:
    for argv in ((), (b"",), (b"a", b"", b"\xff b", b"")):
        (back,) = decode(encode(Record(Kind.EXEC, seq=1, argv=argv)))
        assert back.argv == argv


def test_negative_directory_descriptor_is_read_as_passed() -> None:
    for stored in (2**64 - 100, 2**32 - 100):
        assert Record(Kind.OPEN, args=(stored, 0, 0, 0, 0, 0)).dirfd == -100
