"""What a watch leaves behind when its strace was killed at a bad moment."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from caisson_runner.witness.scratch import end_strays


def stopped(*words: str) -> subprocess.Popen[bytes]:
    """A process that has stopped itself, with these words on its command line."""
    process = subprocess.Popen(["/bin/sh", "-c", "kill -STOP $$", "strace", *words])
    while Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"T":
        assert process.poll() is None
    return process


def test_a_stopped_child_of_a_killed_strace_is_ended_and_nobody_else(tmp_path: Path) -> None:
    own = stopped("-o", f"{tmp_path}/strace-0.pipe")
    other = stopped("-o", f"{tmp_path}-of-another/strace-0.pipe")
    try:
        end_strays(tmp_path)
        assert own.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.wait()
