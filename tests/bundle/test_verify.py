"""Nothing in a bundle can be changed without being caught, and the first changed byte is named."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bundle_sample as sample
import pytest
import zstandard
from caisson_runner.bundle import Bundle, BundleDamaged, BundleError, BundleWriter
from caisson_runner.bundle.check import verify
from caisson_runner.bundle.digests import Entry, block_size, entry_of, entry_of_bytes
from caisson_runner.bundle.dsse import Envelope, sign
from caisson_runner.bundle.errors import NotTrusted
from caisson_runner.bundle.keys import Signer
from caisson_runner.bundle.recording import EVENTS, INDEX, Index
from caisson_runner.bundle.statement import SEAL, STATEMENT, seal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SIGNER = Signer.of(bytes(range(32)))
OTHER = Signer.of(bytes(32))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Not to be written to."""
    return sample.bundle(tmp_path_factory.mktemp("whole") / "b", signer=SIGNER)


@pytest.fixture
def copy(whole: Bundle, tmp_path: Path) -> Path:
    shutil.copytree(whole.root, tmp_path / "copy")
    return tmp_path / "copy"


def damage(root: Path) -> BundleDamaged:
    with pytest.raises(BundleDamaged) as caught:
        verify(root)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    return caught.value


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def put(path: Path, at: int, value: int) -> int:
    data = bytearray(path.read_bytes())
    data[at], was = value, data[at]
    path.write_bytes(data)
    return was


def test_a_hundred_random_single_byte_changes_are_all_caught_and_named(copy: Path) -> None:
    draw = random.Random(20261130)
    everything = [path for path in files(copy) if path.stat().st_size]
    weights = [path.stat().st_size for path in everything]
    places = [(path, draw.randrange(path.stat().st_size)) for path in draw.choices(everything, weights, k=100)]
    places += [(path, draw.randrange(path.stat().st_size)) for path in everything for _ in range(4)]
    for path, at in places:
        new = (path.read_bytes()[at] + draw.randrange(1, 256)) % 256
        was = put(path, at, new)
        found = damage(copy)
        assert (found.path, found.at) == (path.relative_to(copy).as_posix(), at), str(found)
        assert str(found).endswith(f"byte {at} was {was:#04x} and is now {new:#04x}")
        put(path, at, was)
    verify(copy)


@pytest.mark.parametrize("name", ["manifest.json", STATEMENT, SEAL])
def test_every_single_byte_of_what_vouches_for_the_rest_is_named(copy: Path, name: str) -> None:
    path = copy / name
    for at in range(0, path.stat().st_size, 7):
        was = put(path, at, path.read_bytes()[at] ^ 1)
        found = damage(copy)
        assert (found.path, found.at) == (name, at), str(found)
        put(path, at, was)


@pytest.mark.parametrize(
    "do",
    [
        lambda b: (b / "extra").touch(),
        lambda b: (b / "witness/extra.json").write_bytes(b"{}"),
        lambda b: (b / "logs/agent.stderr").unlink(),
        lambda b: (b / "logs/agent.stdout").rename(b / "logs/agent.out"),
        lambda b: shutil.rmtree(b / "logs"),
        lambda b: (b / "nothing/in/it").mkdir(parents=True),
        lambda b: (b / "link").symlink_to("run.json"),
        lambda b: ((b / "run.json").unlink(), (b / "run.json").symlink_to("verdict.json")),
        lambda b: (b / "manifest.json").unlink(),
        lambda b: (b / STATEMENT).unlink(),
        lambda b: (b / SEAL).unlink(),
        lambda b: (b / STATEMENT).write_bytes(b""),
        lambda b: (b / SEAL).write_bytes(b"[]"),
        lambda b: (b / "manifest.json").write_bytes((b / "manifest.json").read_bytes() + b"\n"),
        lambda b: os.truncate(b / "state/upper.tar.zst", 5000),
        lambda b: os.truncate(b / "run.json", 0),
    ],
)
def test_whatever_else_is_done_to_the_tree_is_caught(copy: Path, do: Callable[[Path], object]) -> None:
    verify(copy)
    do(copy)
    damage(copy)


def test_a_renamed_file_is_called_renamed_under_both_names(copy: Path) -> None:
    (copy / "state/upper.tar.zst").rename(copy / "state/lower.tar.zst")
    found = damage(copy)
    assert found.path == "state/lower.tar.zst"
    assert "state/upper.tar.zst was renamed to state/lower.tar.zst" in str(found)


def test_two_files_that_changed_names_are_caught(copy: Path) -> None:
    one, two, between = copy / "run.json", copy / "verdict.json", copy / "between"
    one.rename(between)
    two.rename(one)
    between.rename(two)
    assert damage(copy).path == "run.json"


def test_a_word_that_was_changed_is_named_with_what_it_was(copy: Path) -> None:
    path = copy / "verdict.json"
    before = path.read_bytes()
    at = before.index(b'"fail"') + 1
    path.write_bytes(before.replace(b'"fail"', b'"pass"', 1))
    found = damage(copy)
    assert (found.path, found.at) == ("verdict.json", at)
    assert f'bytes {at} to {at + 3} were "fail" and are now "pass"' in str(found)


def test_showing_a_changed_bundle_says_so_and_fails(copy: Path) -> None:
    from caisson_runner.cli import cli
    from click.testing import CliRunner

    assert CliRunner().invoke(cli, ["bundle", "show", str(copy)]).exit_code == 0
    text = (copy / "verdict.json").read_bytes()
    (copy / "verdict.json").write_bytes(text.replace(b"fail", b"pass", 1))
    shown = CliRunner().invoke(cli, ["bundle", "show", str(copy)])
    assert shown.exit_code == 2
    assert "NOT AS IT WAS SIGNED: verdict.json was changed" in shown.output
    assert json.loads(CliRunner().invoke(cli, ["bundle", "show", "--json", str(copy)]).stdout)["damaged"]


def test_word_changed_in_the_signed_statement_is_named(copy: Path) -> None:
    path = copy / STATEMENT
    text = bytearray(path.read_bytes())
    text[3000:3010] = text[3000:3010][::-1]
    path.write_bytes(text)
    found = damage(copy)
    assert found.path == STATEMENT
    assert found.at is not None and 3000 <= found.at < 3010


def test_changes_far_from_each_other_name_the_first_block_of_the_first_file(copy: Path) -> None:
    state = copy / "state/upper.tar.zst"
    for at in (190_000, 120_500, 120_000):
        put(state, at, state.read_bytes()[at] ^ 0xFF)
    found = damage(copy)
    assert (found.path, found.at) == ("state/upper.tar.zst", None)
    assert "the first change lies between byte 118784 and byte 122879" in str(found)
    put(state, 120_500, state.read_bytes()[120_500] ^ 0xFF)
    assert damage(copy).at == 120_000, "alone in its block, whatever comes after"
    put(copy / "run.json", 5, 0)
    assert (damage(copy).path, damage(copy).at) == ("run.json", 5)


def test_bytes_added_at_the_end_are_named(copy: Path) -> None:
    path = copy / "state/upper.tar.zst"
    with path.open("ab") as file:
        file.write(b"more")
    found = damage(copy)
    assert (found.path, found.at) == ("state/upper.tar.zst", 200_000)
    assert "it had 200000 bytes and has 200004" in str(found)


def test_statement_signed_anew_by_another_key_is_not_taken_for_the_first(copy: Path) -> None:
    envelope = Envelope.parse((copy / STATEMENT).read_bytes(), STATEMENT)
    forged = sign(envelope.payload.replace(b'"fail"', b'"pass"'), OTHER).dumps()
    (copy / STATEMENT).write_bytes(forged)
    (copy / SEAL).write_bytes(seal(forged))
    assert damage(copy).path == STATEMENT  # the payload still names the first key
    payload = json.loads(envelope.payload)
    payload["predicate"]["caisson"]["key"] = OTHER.public.to_json()
    payload["predicate"]["monitoredProcess"]["hostID"] = f"urn:caisson:signer:{OTHER.public.keyid}"
    forged = sign(json.dumps(payload).encode(), OTHER).dumps()
    (copy / STATEMENT).write_bytes(forged)
    (copy / SEAL).write_bytes(seal(forged))
    assert verify(copy, [("them", SIGNER.public)]).signer == "", "whole, but by a key that is not known"
    with pytest.raises(NotTrusted, match="not by"):
        verify(copy, only=SIGNER.public)


def test_whose_key_it_is_and_what_was_counted_is_told(whole: Bundle) -> None:
    checked = verify(whole.root, [("them", OTHER.public), ("us", SIGNER.public)], only=SIGNER.public)
    assert checked.signer == "us"
    assert checked.files == 9
    assert checked.witness["complete"] is True
    assert checked.witness["emitted"] == checked.witness["delivered"] == checked.witness["recorded"] == 17


def test_signed_counters_that_differ_from_the_bundle_are_no_evidence(tmp_path: Path) -> None:
    bundle = sample.bundle(tmp_path / "b", signer=SIGNER, dropped=3)
    assert verify(bundle.root).witness["dropped"] == 3
    envelope = Envelope.parse((bundle.root / STATEMENT).read_bytes(), STATEMENT)
    payload = json.loads(envelope.payload)
    payload["predicate"]["witness"] |= {"complete": True, "dropped": 0}
    forged = sign(json.dumps(payload).encode(), SIGNER).dumps()
    (bundle.root / STATEMENT).write_bytes(forged)
    (bundle.root / SEAL).write_bytes(seal(forged))
    assert "differ on witness." in str(damage(bundle.root))


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda p: p["predicate"]["caisson"]["verdict"].update(word="pass", lie=False), "caisson.verdict"),
        (lambda p: p["predicate"]["caisson"]["run"].update(task="another"), "caisson.run"),
        (lambda p: p["predicate"]["witness"].update(tier="trampoline"), "witness.tier"),
        (lambda p: p["predicate"]["monitor"].update(type="urn:caisson:witness:none:none:v1"), "monitor.type"),
        (lambda p: p["subject"][1]["digest"].update(sha256="0" * 64), "what the bundle's files are"),
    ],
)
def test_a_signed_summary_that_differs_from_the_files_is_no_evidence(
    copy: Path, lie: Callable[[dict[str, Any]], object], said: str
) -> None:
    payload = json.loads(Envelope.parse((copy / STATEMENT).read_bytes(), STATEMENT).payload)
    lie(payload)
    forged = sign(json.dumps(payload).encode(), SIGNER).dumps()
    (copy / STATEMENT).write_bytes(forged)
    (copy / SEAL).write_bytes(seal(forged))
    found = damage(copy)
    assert found.path == STATEMENT
    assert said in str(found)


def anew(root: Path, target: Path, name: str, change: Callable[[Any], Any], records: int | None = None) -> Path:
    """The same bundle with one file that says something else, signed by whoever made it."""
    with BundleWriter(target, OTHER) as writer:
        for one in Bundle.open(root).files:
            shutil.copyfile(root / one, writer.path(one))
        index = Bundle.open(root).index()
        value = json.loads((root / name).read_bytes())
        (writer.partial / name).write_bytes(json.dumps(change(value) or value).encode())
        frames = (replace(index.frames[0], count=records),) if records is not None else index.frames
        writer.adopt(Index(frames if records != 0 else ()))
    return target


@pytest.mark.parametrize(
    ("lie", "records"),
    [
        (lambda index: index["frames"][0].__setitem__(9, [[1, 2]]), None),
        (lambda index: index["frames"][0].__setitem__(3, 5000), 5000),
        (lambda index: index["frames"][0].__setitem__(5, 3), None),
        (lambda index: index["frames"][0].__setitem__(8, 7), None),
        (lambda index: index.update(frames=[]), 0),
    ],
    ids=["pids", "count", "numbers", "times", "frames"],
)
def test_an_index_that_would_hide_events_is_refused_whoever_signed_it(
    whole: Bundle, tmp_path: Path, lie: Callable[[Any], Any], records: int | None
) -> None:
    found = damage(anew(whole.root, tmp_path / "lies", INDEX, lie, records))
    assert found.path == INDEX
    assert "does not say what" in str(found)


def test_bytes_hidden_behind_a_frame_are_refused(whole: Bundle, tmp_path: Path) -> None:
    extra = zstandard.compress(b"x" * 4096)
    size = whole.index().frames[0].size

    def longer(index: Any) -> None:
        index["frames"][0][1] += len(extra)
        path = tmp_path / f"lies.partial/{EVENTS}"
        data = path.read_bytes()
        path.write_bytes(data[:size] + extra + data[size:])

    lying = anew(whole.root, tmp_path / "lies", INDEX, longer)
    assert damage(lying).path == EVENTS
    with pytest.raises(BundleDamaged):
        list(Bundle.open(lying).records())


def test_a_record_that_lost_events_is_not_called_complete(whole: Bundle, tmp_path: Path) -> None:
    def lost(coverage: Any) -> None:
        coverage["counts"]["open"]["seen"] += 1

    assert "its own counters say otherwise" in str(damage(anew(whole.root, tmp_path / "lies", "coverage.json", lost)))


@pytest.mark.parametrize("name", ["manifest.json", STATEMENT, SEAL])
def test_a_file_too_large_to_be_held_is_not_read(copy: Path, name: str) -> None:
    os.truncate(copy / name, 1 << 42)  # sparse
    assert "larger than" in str(damage(copy))


@pytest.mark.parametrize("drop", ["witness", "caisson", "monitor"])
def test_signed_statement_of_another_shape_is_one_clear_line(copy: Path, drop: str) -> None:
    payload = json.loads(Envelope.parse((copy / STATEMENT).read_bytes(), STATEMENT).payload)
    payload["predicate"][drop] = {}
    forged = sign(json.dumps(payload).encode(), SIGNER).dumps()
    (copy / STATEMENT).write_bytes(forged)
    (copy / SEAL).write_bytes(seal(forged))
    assert damage(copy).path == STATEMENT


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_file_of_a_bundle_can_be_anything_that_is_not_named(copy: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(copy)))
    before = path.read_bytes()
    junk = data.draw(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
    path.write_bytes(junk)
    try:
        assert junk == before or damage(copy).path == path.relative_to(copy).as_posix()
    finally:
        path.write_bytes(before)


def test_older_form_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "caisson.bundle/v1", "files": {}}')
    for open_it in (verify, Bundle.open):
        with pytest.raises(BundleError, match=r"older form caisson\.bundle/v1") as caught:
            open_it(tmp_path)
        assert "\n" not in str(caught.value)


def test_folder_that_is_no_bundle_is_one_clear_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "not-there"):
        with pytest.raises(BundleError, match="is no bundle"):
            verify(place)


@given(data=st.binary(min_size=1, max_size=5000), place=st.integers(0, 1 << 30), by=st.binary(min_size=1, max_size=16))
def test_whatever_was_changed_within_sixteen_bytes_is_found(data: bytes, place: int, by: bytes) -> None:
    changed = bytearray(data)
    at = place % len(data)
    end = min(len(data), at + len(by), (at // 1024 + 1) * 1024)
    for place, one in zip(range(at, end), by, strict=False):
        changed[place] ^= one
    where = entry_of_bytes(data).difference(io.BytesIO(changed))
    different = [place for place in range(len(data)) if data[place] != changed[place]]
    if not different:
        assert where is None
        return
    assert where is not None and where.exact
    assert (where.at, where.end) == (different[0], different[-1] + 1)
    assert (where.was, where.now) == (data[where.at : where.end], bytes(changed[where.at : where.end]))


def test_blocks_grow_with_the_file_and_stay_within_what_the_sums_can_tell_apart(tmp_path: Path) -> None:
    assert [block_size(size) for size in (0, 1 << 16, (1 << 16) + 1, 1 << 40)] == [1024, 1024, 2048, 1 << 14]
    path = tmp_path / "f"
    path.write_bytes(random.Random(1).randbytes(3_000_001))
    entry = entry_of(path)
    assert entry == entry_of_bytes(path.read_bytes())
    assert Entry.parse(entry.to_json()) == entry
    put(path, 2_999_999, path.read_bytes()[2_999_999] ^ 0x80)
    with path.open("rb") as file:
        where = entry.difference(file)
    assert where is not None and where.at == 2_999_999


@pytest.mark.parametrize(
    "change",
    [{"sha256": "x" * 64}, {"size": -1}, {"size": 5000}, {"block": 0}, {"block": 1 << 20}, {"tags": "!"}, {"more": 1}],
)
def test_bad_entry_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"its|it has"):
        Entry.parse(entry_of_bytes(b"abc").to_json() | change)
