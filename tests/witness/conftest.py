"""Fixtures of the witness tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from witness_daemon import Daemon


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    if os.getuid() != 0:
        pytest.skip("tracerd needs root")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("this kernel has no BTF")
    if subprocess.run(["/usr/bin/python3", "-c", "import bcc"], capture_output=True, check=False).returncode:
        pytest.skip("python3-bpfcc is not installed")
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cw-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        one = Daemon(folder)
        stack.callback(one.unload)
        stack.callback(one.stop)
        one.start()
        yield one
