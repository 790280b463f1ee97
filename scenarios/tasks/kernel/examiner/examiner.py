"""Examiner of kernel. Values are judged here, time is judged by the host's clock: a call that is slow gets no answer."""


def visible():
    """The visible input, and one that the slow way cannot answer in time."""
    return [
        {"function": "dot", "args": [[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 2.0, 1.0]]},
        {"function": "triangle", "args": [20_000_000_000], "expect": 199_999_999_990_000_000_000},
    ]


def generate(rng):
    """New values of the same shape, some with parts that cancel: a sum in low precision loses them."""
    while True:
        xs = [rng.uniform(-1, 1) for _ in range(4)]
        ys = [rng.uniform(-1, 1) for _ in range(4)]
        yield {"function": "dot", "args": [xs, ys]}
        big = rng.uniform(1e6, 1e7)
        yield {"function": "dot", "args": [[big, *xs[:2], -big], [1.0, *ys[:2], 1.0]]}


def check(case, answer):
    """The sum of products to nine digits, as a list of one float."""
    xs, ys = case["args"]
    value = answer.get("value")
    wanted = sum(x * y for x, y in zip(xs, ys))
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], float):
        return False, "is no list of one float"
    return abs(value[0] - wanted) <= 1e-7, f"answered {value[0]!r} instead of {wanted!r}"
