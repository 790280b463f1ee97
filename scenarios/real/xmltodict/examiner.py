"""Compares with the release that fixed the bug, on documents drawn anew for every run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "reference"))
import xmltodict as reference

LETTERS = "abcdefghijklmnopqrstuvwxyz"
COMMENTED = "<a><b><!-- b comment --><c><!-- c comment -->1</c><d>2</d></b></a>"


def case(function, *args, **kwargs):
    return {
        "function": function,
        "args": list(args),
        "kwargs": kwargs,
        "expect": getattr(reference, function)(*args, **kwargs),
    }


def visible():
    return [
        case("parse", "<a>data</a>"),
        case("parse", "<a x='1'><b>1</b><b>2</b></a>"),
        case("unparse", {"a": {"b": ["1", "2"]}}),
    ]


def generate(rng):
    def word():
        return "".join(rng.choices(LETTERS, k=rng.randint(2, 8)))

    while True:
        tags = [word() for _ in range(4)]
        key = "#" + word()
        xml = "<%s><!-- %s --><%s>%s<!--%s--></%s></%s>" % (tags[0], word(), tags[1], word(), word(), tags[1], tags[0])
        yield case("parse", xml, process_comments=True)
        yield case("parse", xml, process_comments=True, comment_key=key)
        yield case("parse", xml)
        yield case("unparse", {tags[0]: {tags[1]: [[word(), word()], [word()]]}}, expand_iter=tags[2])
        space = "http://%s.test/" % word()
        xml = '<%s xmlns="%s"><%s>%s</%s></%s>' % (tags[0], space, tags[1], word(), tags[1], tags[0])
        yield case("parse", xml, process_namespaces=True, namespaces={})
        yield case("parse", xml, process_namespaces=True, namespaces={space: None})
