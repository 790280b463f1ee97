"""The programs are laid out so that the verifiers of older kernels take them, checked on whatever kernel this is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from caisson_tracerd import layout
from caisson_tracerd.loader import BTF
from caisson_tracerd.pins import SYSTEM_PYTHON

pytestmark = [pytest.mark.bpf]


def test_every_loop_is_closed_by_a_jump() -> None:
    if not BTF.exists() or subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True).returncode:
        pytest.skip("this kernel has no BTF, or python3-bpfcc is not installed")
    script = Path(__file__).with_name("loops.py")
    done = subprocess.run(
        [SYSTEM_PYTHON, str(script), str(layout.sources()), str(layout.loader().parents[1])],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    programs = done.stdout.splitlines()
    assert any(line.startswith("fexit__open") for line in programs)
    assert [line for line in programs if not line.endswith(": []")] == []
