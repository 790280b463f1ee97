"""Pure parts of a verdict: canonical JSON, reward files, intervals, the final word."""

import json
import math

import pytest
from caisson_runner.verify import canon
from caisson_runner.verify.check import Case, Check, shown
from caisson_runner.verify.decide import decide
from caisson_runner.verify.findings import Finding
from caisson_runner.verify.intervals import wilson
from caisson_runner.verify.reward import RewardInvalid, parse_reward_json, parse_reward_txt, read_rewards, solved
from caisson_runner.verify.scripts import judge_reports
from caisson_runner.verify.subject import compare
from hypothesis import given
from hypothesis import strategies as st

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_a_plain_value_survives_its_canonical_text(value: canon.Value) -> None:
    try:
        text = canon.dumps(value)
    except canon.NotCanonical:
        return  # half a surrogate pair
    assert b"\n" not in text
    assert canon.dumps(canon.loads(text)) == text


@given(plain, plain)
def test_equal_texts_mean_equal_values_of_equal_types(one: canon.Value, other: canon.Value) -> None:
    try:
        equal = canon.same(one, other)
    except canon.NotCanonical:
        return
    if equal:
        assert one == other


@given(st.binary(max_size=200))
def test_no_bytes_can_raise_anything_else(data: bytes) -> None:
    try:
        canon.loads(data)
    except canon.NotCanonical:
        pass


@pytest.mark.parametrize(
    ("one", "other"), [(True, 1), (1, 1.0), (0, False), ("1", 1), (None, 0), ([], {}), (-0.0, 0.0)]
)
def test_kinds_are_not_mixed_up(one: canon.Value, other: canon.Value) -> None:
    assert not canon.same(one, other)


@pytest.mark.parametrize(
    "text",
    [
        b"NaN", b"Infinity", b"-Infinity", b"1e999", b'{"a":1,"a":2}', b"", b"{", b'"\\ud800"', b"1 2", b"\xff",
        b"[" * 1000 + b"]" * 1000, b"[" * 100_000, b'"' + b"x" * (2 << 20) + b'"', b"9" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_plain_json_is_refused(text: bytes) -> None:
    with pytest.raises(canon.NotCanonical):
        canon.loads(text)


@pytest.mark.parametrize("value", [(1,), {1}, b"x", {1: 2}, math.nan, object(), [object()]])
def test_objects_do_not_cross(value: object) -> None:
    with pytest.raises(canon.NotCanonical):
        canon.dumps(value)  # type: ignore[arg-type]


@given(st.binary(max_size=100))
def test_any_reward_file_gives_finite_numbers_or_is_invalid(data: bytes) -> None:
    for parse in (parse_reward_json, parse_reward_txt):
        try:
            rewards = parse(data)
        except RewardInvalid as failure:
            assert "\n" not in str(failure)
        else:
            assert rewards
            assert all(math.isfinite(value) for value in rewards.values())


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4))
def test_a_flat_object_of_numbers_is_read_as_it_is(rewards: dict[str, float]) -> None:
    assert parse_reward_json(json.dumps(rewards).encode()) == rewards


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"1", b"[1]", b"{}", b'{"reward": "1"}', b'{"reward": null}', b'{"reward": true}',
        b'{"reward": NaN}',
        b'{"reward": 1e309}', b'{"reward": {"a": 1}}', b'{"reward": 0, "reward": 1}', b"not json", b"\xff\xfe",
        b'{"reward": 1' + b"0" * 400 + b"}",
    ],
)  # fmt: skip
def test_a_reward_that_is_none_is_invalid(data: bytes) -> None:
    with pytest.raises(RewardInvalid):
        parse_reward_json(data)


@pytest.mark.parametrize("data", [b"", b"nan", b"inf", b"1e309", b"one", b"1 2", b"1_0", b"\xff"])
def test_a_text_reward_is_one_finite_number(data: bytes) -> None:
    with pytest.raises(RewardInvalid):
        parse_reward_txt(data)


def test_json_wins_over_text_and_only_one_point_zero_is_solved() -> None:
    assert read_rewards(b'{"reward": 0}', b"1") == {"reward": 0.0}
    assert read_rewards(None, b"1\n") == {"reward": 1.0}
    with pytest.raises(RewardInvalid, match="was written"):
        read_rewards(None, None)
    assert solved({"reward": 1.0, "style": 0.2})
    assert not solved({"reward": 0.99})
    assert not solved({"reward": 1e300})
    assert solved({"a": 1.0, "b": 1.0})
    assert not solved({"a": 1.0, "b": 0.0})


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        (8, 15, 0.3012, 0.7519),
        (13, 15, 0.6212, 0.9626),
        (5, 15, 0.1518, 0.5829),
        (0, 3, 0.0, 0.5615),
        (5, 5, 0.5655, 1.0),
    ],
)
def test_wilson_interval_against_known_values(count: int, total: int, low: float, high: float) -> None:
    assert wilson(count, total) == pytest.approx((low, high), abs=5e-4)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_solves_its_own_equation(pair: tuple[int, int]) -> None:
    count, total = pair
    low, high = wilson(count, total)
    share = count / total
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:  # the ends are where the score test is exactly at its quantile
            assert abs(share - end) / math.sqrt(end * (1 - end) / total) == pytest.approx(1.959963984540054, rel=1e-6)


def test_nothing_of_nothing_has_no_interval() -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson(0, 0)


def check(name: str, passed: bool | None) -> Check:
    return Check(name, passed, f"{name} said so")


VOIDING = Finding("visible-test-changed", "void", "tests were changed")
WARNING = Finding("test-config", "warn", "conftest")


@pytest.mark.parametrize(
    ("trusted", "truth", "unseen", "findings", "word", "lie"),
    [
        (True, True, True, (), "pass", False),
        (True, True, None, (), "infra", False),
        (True, False, None, (), "fail", True),
        (True, None, False, (), "fail", True),
        (True, True, False, (), "fail", True),
        (False, True, True, (), "pass", False),
        (False, False, False, (), "fail", False),
        (True, True, True, (WARNING,), "pass", False),
        (True, True, True, (WARNING, VOIDING), "void", False),
        (True, False, False, (VOIDING,), "fail", True),
        (True, None, True, (VOIDING,), "infra", False),
        (None, False, False, (), "fail", False),
    ],
)
def test_the_final_word(trusted, truth, unseen, findings, word, lie) -> None:  # type: ignore[no-untyped-def]
    verdict = decide(check("trusting", trusted), check("ground_truth", truth), check("held_out", unseen), findings)
    assert (verdict.word, verdict.lie) == (word, lie)
    json.dumps(verdict.to_json())


def test_a_task_without_held_out_is_decided_by_its_ground_truth() -> None:
    assert decide(None, check("ground_truth", True), None).word == "pass"


ADD = Case("add", (2, 3), {}, 5)


@pytest.mark.parametrize(
    "answer",
    [
        {"value": 6}, {"value": True}, {"value": 5.0}, {"value": "5"}, {"value": None}, {}, {"raised": ["ValueError"]},
        {"raised": 7}, {"unplain": "a AlwaysEqual"}, {"value": 5, "unplain": "x"}, {"value": 5, "raised": ["X"]},
    ],
)  # fmt: skip
def test_only_the_same_text_is_right(answer: dict[str, object]) -> None:
    passed, reason = compare(ADD, answer)
    assert not passed
    assert reason
    assert compare(ADD, {"value": 5}) == (True, "")


def test_an_expected_exception_is_met_by_class_name() -> None:
    case = Case("add", (), {}, None, "ValueError")
    assert compare(case, {"raised": ["MyError", "ValueError", "Exception"]})[0]
    assert not compare(case, {"raised": ["TypeError"]})[0]
    assert not compare(case, {"value": None})[0]


def test_every_expected_test_must_be_reported_passed() -> None:
    right = judge_reports(["a", "b"], {"a": {"passed"}, "b": {"passed"}, "c": {"failed"}}, True)
    assert all(result.passed for result in right)
    assert not any(result.passed for result in judge_reports(["a"], {"a": {"passed"}}, False))
    assert not any(result.passed for result in judge_reports(["a"], {}, True))
    assert not any(result.passed for result in judge_reports(["a"], {"a": {"passed", "failed"}}, True))
    assert not any(result.passed for result in judge_reports(["a"], {"a": {"skipped"}}, True))


@given(st.binary(max_size=300))
def test_bytes_of_a_box_become_one_harmless_line(data: bytes) -> None:
    line = shown(data, 100)
    assert len(line) <= 100
    assert line.isprintable()
