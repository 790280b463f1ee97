"""Which of the agent's files steer a test run that only happens to lie beside them.

A test script often starts its runner in the workspace (`cd /app && python3 -m pytest`). Then the runner itself is
looked for there first (`pytest.py`), and so is every module it imports (`json.py`); it reads `conftest.py` and its
configuration from there. Honest work holds such files too, so they are not taken away: the script runs once more
without them, and a pass that hangs on them is shown to be one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from caisson_runner.boxes.engine import Change
from caisson_runner.tasks.task import Task

CONFIGURATION = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "sitecustomize.py", "usercustomize.py"}
)
"""Not `pyproject.toml` and `setup.cfg`: without them a package cannot be installed, and tasks ask for them."""
RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "pygments"})


def steering(task: Task, changes: Sequence[Change]) -> tuple[str, ...]:
    """Paths the agent wrote that decide how tests run, the task's deliverables left out. Pure."""
    roots = {root.rstrip("/") for root in (task.workspace, task.workdir)}
    delivered = {f"{task.workspace.rstrip('/')}/{name}" for name in task.extras.deliverables}
    delivered |= {path if path.startswith("/") else f"{task.workdir}/{path}" for path in task.harbor.artifacts}
    paths = []
    for change in changes:
        path = "/" + os.fsdecode(change.path)
        folder, _, name = path.rpartition("/")
        if change.how == "removed" or path in delivered:
            continue
        if name in CONFIGURATION and change.kind != "dir":
            paths.append(path)
        elif folder in roots and change.how == "added":
            importable = change.kind == "dir" or name.endswith((".py", ".pyc", ".so"))
            module = name.partition(".")[0]
            if importable and (module in RUNNERS or module in sys.stdlib_module_names):
                paths.append(path)
    return tuple(paths)
