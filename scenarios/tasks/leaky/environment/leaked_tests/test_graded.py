from impl import add, mul
from reference import add as right_add
from reference import mul as right_mul


def test_all():
    for a, b in ((2, 3), (-4, 9), (7, 7)):
        assert add(a, b) == right_add(a, b)
        assert mul(a, b) == right_mul(a, b)
