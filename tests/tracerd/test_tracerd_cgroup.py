"""Cgroups of boxes, on the machine's own hierarchies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from caisson_tracerd.cgroup import Cgroup, Limits, sweep, v1_roots, v2_root
from caisson_tracerd.errors import CgroupError

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups can be made by root only"),
]

PARENT = f"caisson-test-{os.getpid()}"
BUSY = "import os\nwhile True: pass"


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    made = Cgroup.create("box", Limits(memory_bytes=64 << 20, pids=16, cpu_millis=500), parent=PARENT)
    yield made
    if made.path.exists():
        made.kill()
    made.remove()


def start(cgroup: Cgroup, *argv: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cgroup.add(process.pid)
    return process


def cpu_ticks(pid: int) -> int:
    return sum(int(word) for word in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])


def test_its_id_is_the_inode_number_the_kernel_programs_see(cgroup: Cgroup) -> None:
    assert cgroup.id == cgroup.path.stat().st_ino
    assert v2_root() in cgroup.path.parents


def test_each_limit_lands_in_the_hierarchy_that_has_its_controller(cgroup: Cgroup) -> None:
    assert cgroup.missing == ()
    places = [cgroup.path, *cgroup.v1]
    assert any((place / "pids.max").exists() and (place / "pids.max").read_text() == "16\n" for place in places)
    memory = [place / name for place in places for name in ("memory.max", "memory.limit_in_bytes")]
    assert [file.read_text() for file in memory if file.exists()] == [f"{64 << 20}\n"]


def test_a_process_limit_holds_and_is_counted(cgroup: Cgroup) -> None:
    code = "import os, time\nfor _ in range(40):\n  try:\n    os.fork() or time.sleep(60)\n  except OSError: pass\n"
    process = start(cgroup, sys.executable, "-c", "import time; time.sleep(0.2)\n" + code)
    deadline = time.monotonic() + 10
    while not cgroup.stats().get("pids_max_hits") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(cgroup.pids()) <= 16
    assert cgroup.stats()["pids_max_hits"] > 0
    cgroup.kill()
    process.wait(5)


def test_a_memory_limit_kills_and_is_counted(cgroup: Cgroup) -> None:
    process = start(cgroup, sys.executable, "-c", "import time; time.sleep(0.3); b = bytearray(256 << 20)")
    assert process.wait(20) == -signal.SIGKILL
    assert cgroup.stats()["oom_kills"] >= 1


def test_a_frozen_cgroup_stands_still_and_a_thawed_one_goes_on(cgroup: Cgroup) -> None:
    process = start(cgroup, sys.executable, "-c", BUSY)
    cgroup.freeze()
    before = cpu_ticks(process.pid)
    time.sleep(0.2)
    assert cpu_ticks(process.pid) == before
    cgroup.thaw()
    deadline = time.monotonic() + 10
    while cpu_ticks(process.pid) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert cpu_ticks(process.pid) > before
    cgroup.kill()
    assert process.wait(5) == -signal.SIGKILL


def test_an_empty_cgroup_freezes_too(cgroup: Cgroup) -> None:
    cgroup.freeze(1.0)
    assert cgroup.frozen
    assert not cgroup.populated


def test_kill_reaches_the_frozen_and_those_in_child_cgroups(cgroup: Cgroup) -> None:
    child = cgroup.path / "child"
    child.mkdir()
    outer = start(cgroup, "sleep", "60")
    inner = start(cgroup, "sleep", "60")
    (child / "cgroup.procs").write_text(str(inner.pid))
    assert sorted(cgroup.pids()) == sorted([outer.pid, inner.pid])
    cgroup.freeze()
    cgroup.kill()
    assert (outer.wait(5), inner.wait(5)) == (-signal.SIGKILL, -signal.SIGKILL)
    cgroup.remove()
    assert not cgroup.path.exists()


def test_kill_works_without_cgroup_kill(cgroup: Cgroup) -> None:
    process = start(cgroup, "sh", "-c", "trap '' TERM; while :; do sleep 0.01; done")
    cgroup._kill_one_by_one()
    assert process.wait(5) == -signal.SIGKILL
    assert cgroup.pids() == []


def test_remove_kills_what_is_left_and_leaves_no_empty_parent(cgroup: Cgroup) -> None:
    process = start(cgroup, "sleep", "60")
    cgroup.remove()
    assert process.wait(5) == -signal.SIGKILL
    roots = [root for root in (v2_root(), *v1_roots().values()) if root is not None]
    assert not any((root / PARENT).exists() for root in roots)
    cgroup.remove()


def test_a_second_box_of_the_same_name_is_refused(cgroup: Cgroup) -> None:
    with pytest.raises(CgroupError, match="exists already"):
        Cgroup.create("box", Limits(), parent=PARENT)
    assert cgroup.path.is_dir()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(CgroupError, match="plain path"):
        Cgroup.create(name, Limits(), parent=PARENT)


def test_an_opened_cgroup_is_the_made_one(cgroup: Cgroup) -> None:
    again = Cgroup.open(cgroup.path)
    assert (again.path, again.id, sorted(again.v1)) == (cgroup.path, cgroup.id, sorted(cgroup.v1))


def test_a_process_that_is_gone_cannot_be_admitted(cgroup: Cgroup) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(CgroupError, match="could not join"):
        cgroup.add(process.pid)


def test_sweep_removes_what_nobody_keeps_and_nothing_else() -> None:
    kept = Cgroup.create("kept", Limits(), parent=PARENT)
    lost = Cgroup.create("lost", Limits(pids=5), parent=PARENT)
    daemon = Cgroup.create("other", Limits(), parent=f"{PARENT}/user.0")
    process = start(lost, "sleep", "60")
    try:
        assert sweep(PARENT, lambda name: name == "kept") == ["lost"]
        assert process.wait(5) == -signal.SIGKILL
        assert not any(directory.exists() for directory in (lost.path, *lost.v1))
        assert kept.path.is_dir()
        assert daemon.path.is_dir()
    finally:
        daemon.remove()
        kept.remove()
    assert sweep(PARENT, lambda name: False) == []
