"""A real tracerd of this checkout, in places of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Daemon:
    """Starts, kills and restarts ``tracerd serve`` in a temporary run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "0" / "tracerd.sock"
        self._places = [
            "--run-dir", str(folder / "run"), "--state-dir", str(folder / "state"),
            "--cgroup-parent", f"caisson-witness-{os.getpid()}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 30) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "caisson_tracerd.cli", "serve",
                 *self._places, "--unload-on-exit"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + timeout
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"tracerd did not become ready: {self.log()}")
            time.sleep(0.05)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-1000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.socket.unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(20)

    def unload(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "caisson_tracerd.cli", "unload", "--run-dir", self._places[1], "--state-dir",
             self._places[3], "--cgroup-parent", self._places[5]],
            check=False, capture_output=True, timeout=30,
        )  # fmt: skip
