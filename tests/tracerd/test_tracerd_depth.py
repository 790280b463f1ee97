"""How deep the visible hierarchy begins, told by the kernel also where every file says "/"."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from caisson_tracerd import depth
from caisson_tracerd.cgroup import v2_root

pytestmark = [pytest.mark.root, pytest.mark.bpf]

ASK = "from caisson_tracerd import depth, layout; print(depth.of_mount(layout.v2_root()), layout.Layout().box_level)"


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0 or v2_root() is None:
        pytest.skip("needs root and a version 2 cgroup hierarchy")


def test_inside_a_cgroup_namespace_the_depth_is_the_kernels_not_the_files() -> None:
    root = v2_root()
    assert root is not None
    here = depth.of_mount(root)
    assert here is not None
    outer = root / f"caisson-depth-{os.getpid()}"
    inner = outer / "below"
    inner.mkdir(parents=True)
    try:
        anew = f"umount {root} && mount -t cgroup2 none {root}"
        script = f'echo $$ > {inner}/cgroup.procs; exec unshare -C -m sh -c \'{anew} && exec "$@"\' sh "$@"'
        done = subprocess.run(["sh", "-c", script, "sh", sys.executable, "-c", ASK], capture_output=True, text=True)
        assert done.stdout.split() == [str(here + 2), str(here + 5)], done.stderr
    finally:
        inner.rmdir()
        outer.rmdir()


def test_inside_a_pid_namespace_the_number_is_the_kernels() -> None:
    assert depth.own_pid() == os.getpid()
    ask = "import os; from caisson_tracerd import depth; print(os.getpid(), depth.own_pid())"
    done = subprocess.run(["unshare", "-f", "-p", sys.executable, "-c", ask], capture_output=True, text=True)
    inside, outside = (int(word) for word in done.stdout.split())
    assert inside == 1
    assert outside > 1


def test_who_may_not_ask_the_kernel_gets_no_answer_instead_of_a_wrong_one() -> None:
    done = subprocess.run(["setpriv", "--bounding-set=-all", sys.executable, "-c", ASK], capture_output=True, text=True)
    assert done.stdout.split()[:1] == ["None"], done.stderr
