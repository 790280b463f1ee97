"""In the subject's room of a split run: holds the agent's modules and does what the tests in the other room ask.

One line in, one line out. Everything here may be read, patched or replaced by the agent's code; nothing is trusted
because of it. Stands behind `values` in one program.
"""

import importlib
import itertools
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from typing import Any

    from caisson_runner.verify.rooms.values import decode, encode

kept: "list[Any]" = []


def keep(value: "Any") -> "dict[str, Any]":
    """What is not plain stays here, under a number."""
    if isinstance(value, type) and issubclass(value, BaseException):
        bases = [kind.__name__ for kind in value.__mro__ if kind.__module__ == "builtins"]
        return {"t": "exception", "v": [value.__name__, bases]}
    if hasattr(type(value), "__next__"):  # an iterator arrives as what it gives
        given: Any = value
        items = [encode(item, keep, 1) for item in itertools.islice(given, 10_000)]
        return {"t": "list", "v": items}
    kept.append(value)
    return {"t": "kept", "v": len(kept) - 1, "call": callable(value), "kind": type(value).__name__}


def find(request: "dict[str, Any]") -> "Any":
    target = kept[request["kept"]] if "kept" in request else importlib.import_module(request["module"])
    for name in request.get("path", ()):
        target = getattr(target, name)
    return target


def answer(request: "dict[str, Any]") -> "dict[str, Any]":
    try:
        target = find(request)
        if request["op"] == "import":
            return {"value": None}
        if request["op"] == "get":
            return {"value": encode(target, keep)}
        made = [decode(arg, lambda form: kept[form["v"]]) for arg in request["args"]]
        named = {name: decode(arg, lambda form: kept[form["v"]]) for name, arg in request["kwargs"].items()}
        value = encode(target(*made, **named), keep)
        return {"value": value, "args": [encode(arg, keep) for arg in made]}
    except BaseException as failure:
        names = [kind.__name__ for kind in type(failure).__mro__ if kind is not object]
        return {"raised": names, "text": str(failure)[:500]}


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    sys.path[:0] = json.loads(requests.readline())["path"]
    sys.dont_write_bytecode = True
    for line in requests:
        request = json.loads(line)
        try:
            reply = answer(request)
            text = json.dumps({"id": request["id"], **reply}, allow_nan=False)
        except BaseException as failure:
            text = json.dumps({"id": request["id"], "raised": ["RuntimeError"], "text": type(failure).__name__})
        answers.write(text.encode("ascii") + b"\n")
        answers.flush()


main()
