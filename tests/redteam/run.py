"""`make redteam`: the red team for every engine, with a Docker daemon of its own where none answers and one can run.

Arguments go to `caisson-run redteam routes`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docker"))
from docker_daemon import dockerd, why_not


def main(arguments: list[str]) -> int:
    """The command's exit code."""
    command = [sys.executable, "-m", "caisson_runner", "redteam", "routes", *arguments]
    if why_not() or os.environ.get("DOCKER_HOST") or "--docker-host" in arguments or _answers():
        return subprocess.run(command, check=False).returncode
    with tempfile.TemporaryDirectory(prefix="caisson-rt-docker-") as folder, dockerd(Path(folder) / "d") as daemon:
        return subprocess.run([*command, "--docker-host", daemon.host], check=False).returncode


def _answers() -> bool:
    try:
        return subprocess.run(["docker", "version"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
