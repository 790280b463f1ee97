"""In the subject's room: imports the agent's module and answers calls, one JSON line each way.

Everything here may be read, patched or replaced by the agent's code; nothing is trusted because of it. No expected
value ever comes into this process.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import math
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from typing import Any

MOST_ITEMS = 10_000


class Unplain(Exception):
    """A value that has no JSON form."""


def plain(value: Any, depth: int = 0) -> Any:
    """The JSON form of a value: tuples and iterators become lists, subclasses their base."""
    if depth > 60:
        raise Unplain("nested too deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        if not math.isfinite(number):
            raise Unplain("a number that is not finite")
        return number
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in dict.keys(value)):
            raise Unplain("a dict with keys that are no strings")
        return {str.__str__(key): plain(entry, depth + 1) for key, entry in dict.items(value)}
    if isinstance(value, (list, tuple)):
        return [plain(entry, depth + 1) for entry in value]
    if hasattr(type(value), "__next__"):
        items: list[Any] = []
        for item in value:
            if len(items) >= MOST_ITEMS:
                raise Unplain(f"an iterator of more than {MOST_ITEMS} items")
            items.append(plain(item, depth + 1))
        return items
    raise Unplain("a " + type(value).__name__)


class Source(importlib.machinery.SourceFileLoader):
    """Reads the source alone: a compiled file beside it could say something else."""

    def path_stats(self, path: Any) -> Any:
        raise OSError


def from_source(roots: list[str]) -> None:
    """Let everything below these directories be imported from source or from extension modules."""
    kinds = importlib.machinery

    def finder(path: str) -> Any:
        if any(path == root or path.startswith(root + "/") for root in roots):
            extensions = (kinds.ExtensionFileLoader, kinds.EXTENSION_SUFFIXES)
            return kinds.FileFinder(path, extensions, (Source, kinds.SOURCE_SUFFIXES))
        raise ImportError

    sys.path_hooks.insert(0, finder)
    sys.path[:0] = roots


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n")
        answers.flush()

    task = json.loads(requests.readline())
    from_source(task["path"])
    try:
        module = importlib.import_module(task["module"])
    except BaseException as failure:
        send(
            {
                "id": task["id"],
                "broken": f"import of {task['module']}: {type(failure).__name__}: {str(failure)[:200]}",
            }
        )
        return
    send({"id": task["id"], "ready": True})
    for line in requests:
        request = json.loads(line)
        answer = {"id": request["id"]}
        try:
            target: Any = module
            for name in request["function"].split("."):
                target = getattr(target, name)
            answer["value"] = plain(target(*request["args"], **request["kwargs"]))
        except Unplain as failure:
            answer["unplain"] = str(failure)
        except BaseException as failure:
            answer["raised"] = [kind.__name__ for kind in type(failure).__mro__ if kind is not object]
            answer["text"] = str(failure)[:200]
        send(answer)


main()
