"""In a test room: runs one directory of tests with pytest and reports every test by name.

The report goes over the original stdout, each line with a word that came over stdin. Code under test shares this
process, so a determined one can find both: scripts are the weaker kind of check (docs/verdicts.md).
"""

from __future__ import annotations

import json
import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of the start
    from typing import Any


def main() -> int:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    task = json.loads(requests.readline())
    word = task.pop("word")
    dumps = json.dumps

    def send(**message: Any) -> None:
        answers.write(dumps({"word": word, **message}).encode("ascii") + b"\n")
        answers.flush()

    class Report:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
                send(test=report.nodeid, outcome=outcome)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                send(test=report.nodeid, outcome="not collected")

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path[:0] = task["path"]
    code = pytest.main(
        ["-q", "-c", "/dev/null", "--rootdir", task["tests"], "--noconftest", "-p", "no:cacheprovider", task["tests"]],
        plugins=[Report()],
    )
    send(end=int(code))
    return int(code)


sys.exit(main())
