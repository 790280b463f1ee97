"""A real systemd in a container: ``systemd-nspawn -b`` on an overlay of a cached root file system.

It sees the kernel's BPF through a file system of its own, a private network, and cgroups below one of ours. It dies
with the process that made it, also when that is killed; mounts lie in a namespace of its own. Commands run as transient
units, so that they are processes of that machine and not ours.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

BOOT_S = 60
_PREFIX = "caisson-nspawn-"


def cgroup_roots() -> list[Path]:
    """Where this process's cgroups are made: version 2, and systemd's named hierarchy on hybrid hosts."""
    roots = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            roots.append(Path(point))
    return roots


def sweep() -> None:
    """Cgroups of machines whose maker was killed."""
    for root in cgroup_roots():
        for folder in root.glob(f"{_PREFIX}*"):
            if not Path(f"/proc/{folder.name.removeprefix(_PREFIX)}").exists():
                _remove(folder)


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _remove(folder: Path) -> None:
    for _ in range(100):
        for top, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                Path(top).rmdir()
        if not folder.exists():
            return
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
        time.sleep(0.05)
    raise AssertionError(f"cgroup {folder} could not be removed")


class Machine:
    """One boot. ``scratch/host`` is seen inside, read-only, as /host. Neither folder may lie in /tmp or /run."""

    def __init__(self, image: Path, scratch: Path) -> None:
        self.image = image
        self.scratch = scratch
        self.console = scratch / "console.log"
        self._name = f"{_PREFIX}{os.getpid()}"
        self._cgroups = [root / self._name for root in cgroup_roots()]
        self._process: subprocess.Popen[bytes] | None = None
        self._nspawn = self._leader = 0
        self.boot_s = 0.0

    def start(self) -> None:
        sweep()
        began = time.monotonic()
        for folder in self._cgroups:
            folder.mkdir()
        host, points = self.scratch / "host", self.scratch / "mounts"
        for folder in (host, points / "bpf"):
            folder.mkdir(parents=True, exist_ok=True)
        address = f"caisson-nspawn-{os.getpid()}-{time.monotonic_ns()}"
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            f"--directory={self.image}",
            "--volatile=overlay",
            "--keep-unit",
            "--register=no",
            "--private-network",
            "--machine=service-test",
            "--capability=all",
            "--system-call-filter=bpf perf_event_open",
            f"--bind={points / 'bpf'}:/sys/fs/bpf",
            f"--bind-ro={host}:/host",
            "--console=pipe",
            "--notify-ready=yes",
        ]
        # Its own /tmp and /run: what nspawn makes there is gone with the namespace, however it ends.
        steps = [
            f"mount -t bpf bpf {points / 'bpf'}",
            "mount -t tmpfs none /run",
            "mount -t tmpfs none /tmp",
            'exec "$@"',
        ]
        inner = shlex.quote(" && ".join(steps))
        join = " && ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self._cgroups)
        # A pid namespace around nspawn: when its first process is killed, the kernel kills every other in it.
        unshare = "unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc"
        script = f'{join} && exec {unshare} sh -c {inner} sh "$@"'
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, open(self.console, "wb") as console:
            ready.bind("\0" + address)
            ready.settimeout(1)
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "sh", "-c", script, "sh", *nspawn],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": "@" + address},
                start_new_session=True,
            )
            while True:
                if self._process.poll() is not None or time.monotonic() - began > BOOT_S:
                    raise AssertionError(
                        f"the machine did not boot: {self.console.read_text(errors='replace')[-2000:]}"
                    )
                with contextlib.suppress(TimeoutError):
                    if b"READY=1" in ready.recv(4096).split(b"\n"):
                        break
        self._nspawn = _only_child(self._process.pid)
        self._leader = _only_child(self._nspawn)
        self.boot_s = time.monotonic() - began

    def stop(self) -> None:
        """Power it off and leave nothing of it."""
        process, self._process = self._process, None
        if process is not None:
            if self._nspawn:
                os.kill(self._nspawn, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for folder in self._cgroups:
            if folder.exists():
                _remove(folder)
        shutil.rmtree(self.scratch / "mounts", ignore_errors=True)

    def enter(self, *words: str) -> list[str]:
        """A command of ours in the machine's namespaces, outside of its units."""
        return ["nsenter", f"--target={self._leader}", "-m", "-p", "-i", "-u", "-n", "-C", "--", *words]

    def start_unit(self, words: Sequence[str], user: str = "root", **options: object) -> subprocess.Popen[bytes]:
        """A command as a transient unit of the machine; ends with it."""
        home = "/" if user == "root" else f"/home/{user}"
        unit = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--uid={user}"]
        unit += [f"--working-directory={home}", f"--setenv=HOME={home}", "--setenv=LC_ALL=C.UTF-8", "--", *words]
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(self.enter(*unit), **{**defaults, **options})  # type: ignore[call-overload,no-any-return]

    def run(self, *words: str, user: str = "root", timeout: float = 60, check: bool = True) -> str:
        """The command's output; AssertionError with it when the command fails."""
        process = self.start_unit(words, user)
        out, _ = process.communicate(timeout=timeout)
        text = out.decode("utf-8", "backslashreplace")
        assert not check or process.returncode == 0, f"{words} ended with {process.returncode}: {text[-4000:]}"
        return text

    def show(self, *properties: str, unit: str = "tracerd.service") -> dict[str, str]:
        """What systemd says of a unit."""
        text = self.run("systemctl", "show", unit, f"--property={','.join(properties)}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
