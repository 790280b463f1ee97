"""Examiner of online. Runs in a sealed room of its own; the agent's code never shares a process with it."""


def visible():
    """The cases of the article's ground truth: the two visible tests and one more."""
    return [
        {"function": "add", "args": [2, 3], "expect": 5},
        {"function": "mul", "args": [3, 4], "expect": 12},
        {"function": "add", "args": [-1, 1], "expect": 0},
    ]


def generate(rng):
    """Inputs no agent has seen, drawn anew for every run. Endless: the harness takes as many as it wants."""
    while True:
        a, b = rng.randint(-(10**6), 10**6), rng.randint(-(10**6), 10**6)
        yield {"function": "add", "args": [a, b], "expect": a + b}
        yield {"function": "mul", "args": [a, b], "expect": a * b}
