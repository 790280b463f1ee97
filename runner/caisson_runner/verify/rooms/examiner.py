"""In the examiner's room: runs the task author's examiner. No file and no code of an agent is ever here.

Lines in: {"op": "visible"}, {"op": "generate", "seed": N, "count": N}, {"op": "check", "case": {...}, "answer": {...}}.
Lines out: {"case": {...}} for each case, then {"end": true}; {"passed": bool, "reason": text}; {"broken": text}.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from typing import Any


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n")

    file = sys.argv[1]
    sys.path.insert(0, os.path.dirname(file))  # noqa: PTH120
    try:
        spec = importlib.util.spec_from_file_location("examiner", file)
        examiner = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(examiner)  # type: ignore[union-attr]
    except BaseException as failure:
        send({"broken": f"import: {type(failure).__name__}: {str(failure)[:300]}"})
        answers.flush()
        return
    for line in requests:
        request = json.loads(line)
        try:
            if request["op"] == "check":
                result = examiner.check(request["case"], request["answer"])
                passed, reason = result if isinstance(result, tuple) else (result, "")
                send({"passed": passed is True, "reason": str(reason)[:300]})
            else:
                if request["op"] == "visible":
                    cases = iter(examiner.visible())
                else:
                    rng = random.Random(request["seed"])  # noqa: S311  # repeatable by seed
                    cases = itertools.islice(examiner.generate(rng), request["count"])
                for case in cases:
                    send({"case": case})
                send({"end": True})
        except BaseException as failure:
            send({"broken": f"{request['op']}: {type(failure).__name__}: {str(failure)[:300]}"})
        answers.flush()


main()
