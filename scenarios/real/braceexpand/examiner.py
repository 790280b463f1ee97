"""Compares with the release that fixed the bug, on patterns drawn anew for every run."""

import string
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import braceexpand as reference

ALPHABET = string.ascii_uppercase + string.ascii_lowercase


def case(pattern):
    return {"function": "braceexpand", "args": [pattern], "expect": list(reference.braceexpand(pattern))}


def visible():
    return [case(pattern) for pattern in ("{a..b..0}", "{1..3..0}", "{1,2}", "a{b,c}d{e,f}", "{7..10}", "{e..a..2}")]


def generate(rng):
    while True:
        low = rng.randint(-50, 50)
        yield case("{%d..%d..%s}" % (low, low + rng.randint(2, 9), rng.choice(("0", "-0"))))
        yield case("{%s..A}" % rng.choice(ALPHABET[1:]))
        yield case("{%s..%s..0}" % tuple(rng.sample(ALPHABET, 2)))
        words = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 3))) for _ in range(4)]
        yield case("%s{%s,%s{%d..%d}}%s" % (words[0], words[1], words[2], low, low + 3, words[3]))
