"""Fixtures of the comparison's tests: a daemon of this checkout in places of its own, a store, what a host has."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from caisson_runner.boxes.store import Store


@pytest.fixture(scope="session")
def tracerd_socket() -> Iterator[Path]:
    """The socket of a tracerd that lives as long as the tests."""
    if os.getuid() != 0:
        pytest.skip("tracerd needs root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("this kernel has no BTF")
    if subprocess.run(["/usr/bin/python3", "-c", "import bcc"], capture_output=True, check=False).returncode:
        pytest.skip("python3-bpfcc is not installed")
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cmp-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        places = [
            "--run-dir", str(folder / "run"), "--state-dir", str(folder / "state"),
            "--cgroup-parent", f"caisson-compare-{os.getpid()}",
        ]  # fmt: skip
        tracerd = [sys.executable, "-m", "caisson_tracerd.cli"]
        stack.callback(subprocess.run, [*tracerd, "unload", *places], check=False, capture_output=True, timeout=30)
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", *tracerd, "serve", *places, "--unload-on-exit"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

        def stop() -> None:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)

        stack.callback(stop)
        socket = folder / "run" / "0" / "tracerd.sock"
        deadline = time.monotonic() + 60
        while not socket.exists():
            assert daemon.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-1000:]
            time.sleep(0.05)
        yield socket


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))
