"""Compares with the release that fixed the bug, on words drawn anew for every run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import inflection as reference

FIRST = "áéíóúàèñçüöäøåßčšž"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def case(function, word):
    return {"function": function, "args": [word], "expect": getattr(reference, function)(word)}


def visible():
    return [
        case("pluralize", "passerby"),
        case("singularize", "passersby"),
        case("titleize", "ana índia"),
        case("pluralize", "octopus"),
        case("titleize", "active_record"),
    ]


def generate(rng):
    def word():
        return "".join(rng.choices(LETTERS, k=rng.randint(2, 7)))

    while True:
        passer = rng.choice(("passer", "Passer", "PASSER"))
        yield case("pluralize", word() + " " + passer + "by")
        yield case("singularize", word() + " " + passer + "sby")
        yield case("titleize", " ".join(rng.choice(FIRST) + word() for _ in range(2)))
        yield case("pluralize", word())
        yield case("titleize", word() + "_" + word())
