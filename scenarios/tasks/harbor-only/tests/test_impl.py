import pytest
from impl import Counter, add


def test_add():
    assert add(2, 3) == 5
    assert add(0.5, 0.25) == 0.75


def test_add_refuses_strings():
    with pytest.raises(TypeError):
        add("a", "b")


def test_counts():
    counter = Counter()
    counter.feed("a b a")
    assert counter.counts() == {"a": 2, "b": 1}
    assert counter.top() == "a"


def test_merge_in_place():
    into = [3, 1]
    Counter.merge(into, [2])
    assert into == [1, 2, 3]


def test_type():
    assert isinstance(Counter(), Counter)
