"""What this machine needs for the witness, one line each, with the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from caisson_tracerd import pins, trial
from caisson_tracerd.btf import Btf, BtfError
from caisson_tracerd.cgroup import v1_roots, v2_root
from caisson_tracerd.errors import TracerdError
from caisson_tracerd.layout import Layout, is_bpffs, sources
from caisson_tracerd.loader import BTF


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement. ``needed`` false: the witness works without it."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True


def examine(layout: Layout) -> list[Finding]:
    """Every requirement, in the order in which a person would mend them."""
    return [
        Finding("root", os.geteuid() == 0, f"uid {os.geteuid()}", "run with sudo, or as the systemd service"),
        Finding("machine", os.uname().machine == "x86_64", os.uname().machine, "use an x86-64 machine"),
        Finding("kernel", _kernel() >= (5, 10), os.uname().release, "use Linux 5.10 or newer"),
        Finding("BTF", BTF.exists(), str(BTF), "use a kernel with CONFIG_DEBUG_INFO_BTF"),
        _bpftool(),
        _bcc(),
        _sources(),
        _cgroup(),
        _controllers(),
        _bpffs(layout),
        _pins(layout),
        *_hooks(),
    ]


def _kernel() -> tuple[int, ...]:
    words = os.uname().release.replace("-", ".").split(".")[:2]
    return tuple(int(word) for word in words if word.isdigit())


def _bpftool() -> Finding:
    found = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
    return Finding("bpftool", found is not None, found or "not found", "apt-get install bpftool")


def _bcc() -> Finding:
    command = [pins.SYSTEM_PYTHON, "-I", "-c", "import bcc; print(bcc.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        ok, detail = done.returncode == 0, done.stdout.strip() or "not importable"
    except (OSError, subprocess.TimeoutExpired) as problem:
        ok, detail = False, str(problem)
    return Finding("bcc", ok, f"{detail} in {pins.SYSTEM_PYTHON}", "apt-get install python3-bpfcc")


def _sources() -> Finding:
    try:
        return Finding("sources", True, str(sources()))
    except TracerdError as problem:
        return Finding("sources", False, str(problem), "reinstall caisson")


def _cgroup() -> Finding:
    root = v2_root()
    return Finding(
        "cgroup v2", root is not None, str(root or "not mounted"), "mount -t cgroup2 none /sys/fs/cgroup/unified"
    )


def _controllers() -> Finding:
    root = v2_root()
    here = set(v1_roots())
    if root is not None:
        here |= set((root / "cgroup.controllers").read_text().split())
    missing = sorted({"memory", "pids", "cpu"} - here)
    detail = f"no controller for {', '.join(missing)}" if missing else "memory, pids and cpu can be limited"
    return Finding("limits", not missing, detail, "boot with the controllers enabled", needed=False)


def _bpffs(layout: Layout) -> Finding:
    system = is_bpffs(Path("/sys/fs/bpf"))
    detail = "/sys/fs/bpf" if system else f"none at /sys/fs/bpf; tracerd mounts its own at {layout.own_bpffs}"
    return Finding("BPF file system", True, detail)


def _pins(layout: Layout) -> Finding:
    try:
        manifest = pins.check(layout)
    except TracerdError as problem:
        return Finding("pins", False, str(problem), "tracerd unload && tracerd load", needed=False)
    detail = f"loaded under {layout.pins}" if manifest else "not loaded; serve does it"
    return Finding("pins", True, detail)


def _hooks() -> list[Finding]:
    """Each hook of the trampoline tier, tried on a real event; what is lost without it."""
    if os.geteuid() != 0 or not BTF.exists() or os.uname().machine != "x86_64":
        return []
    try:
        tried = trial.try_all(Btf.read(BTF))
    except (OSError, BtfError) as problem:
        return [Finding("hooks", False, f"not tried: {problem}", "the tracepoint tier works without", needed=False)]
    return [
        Finding(
            f"hook {one.hook}",
            one.ok,
            f"{one.how} on {one.function} fires"
            if one.ok
            else f"{one.how} on {one.function or 'nothing'}: {one.reason}",
            f"nothing to mend; without it {one.lost}",
            needed=False,
        )
        for one in tried
    ]
