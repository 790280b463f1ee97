import sys

sys.path.insert(0, "/app")

from impl import add, mul


def test_add():
    assert add(2, 3) == 5
    assert add(-4, 9) == 5


def test_mul():
    assert mul(3, 4) == 12
    assert mul(-2, 8) == -16
