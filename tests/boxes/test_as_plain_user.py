"""The same promises for a plain user, when the suite is run as root: all of it once more, as a user made for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GATE = HERE.parent / "gate" / "boxes"
BUNDLE = "test_the_bundle_holds_what_went_out_and_leads_to_the_process"
BOXES = [str(path) for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__)]
BEHIND_A_GATE = [
    f"{GATE}/{one}" for one in ("test_gate_containment.py", "test_gate_failures.py", f"test_gate_runs.py::{BUNDLE}")
]
"""What depends on who makes the namespaces; clients and policies do not."""


def interpreter(user: str) -> str | None:
    """One of this version that the user may run; this one's packages go along by PYTHONPATH."""
    for candidate in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        line = f"{candidate} -c 'import sys; print(sys.version_info[:2])'"
        done = subprocess.run(["su", user, "-s", "/bin/sh", "-c", line], capture_output=True, text=True, check=False)
        if done.stdout.strip() == str(tuple(sys.version_info[:2])):
            return candidate
    return None


@pytest.fixture
def user() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("this run is a plain user's already")
    name = f"caisson-t{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--home-dir", "/nonexistent", name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("tests", "least"), [(BOXES, 70), (BEHIND_A_GATE, 10)], ids=["boxes", "gate"])
def test_all_of_it_holds_for_a_plain_user(user: str, tests: list[str], least: int):
    python = interpreter(user)
    if python is None:
        pytest.skip(f"{sys.executable} may not be run by other users and /usr/bin has no Python of this version")
    base = Path(f"/var/tmp/{user}")
    base.mkdir(mode=0o755)
    try:
        shutil.chown(base, user, user)
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(base),
            "CAISSON_HOME": str(base / "home"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        words = " ".join(f"{name}='{value}'" for name, value in environment.items())
        options = (
            f"-q -p no:cacheprovider --basetemp={base}/t -c {ROOT}/pyproject.toml --rootdir={ROOT} -m 'not docker'"
        )
        line = f"cd {base} && env -i {words} {python} -m pytest {options} {' '.join(tests)}"
        done = subprocess.run(["su", user, "-s", "/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(done.stdout[-6000:], done.stderr[-1000:])
    assert done.returncode == 0
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= least
