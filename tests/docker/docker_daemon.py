"""A Docker daemon for the tests, which nobody else on the machine notices.

Own data root, exec root, socket and pid file below one folder; a private mount and network namespace (containers'
mounts and the daemon's firewall rules stay in there); no bridge, no firewall rules, no registry. Everything is gone
when it ends, also when the test process is killed: the daemon then gets SIGTERM from the kernel.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
IMAGE = "caisson-test-busybox:1"
"""Made from this host's busybox by the fixture `client`."""


def why_not() -> str:
    """Why no daemon can run here; empty when it can be tried."""
    if os.geteuid() != 0:
        return "a Docker daemon needs root"
    for program in ("dockerd", "containerd", "runc", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install docker.io)"
    try:
        import docker  # noqa: F401
    except ImportError:
        return "the docker SDK is not installed (the extra `docker`)"
    return ""


class Dockerd:
    """One running daemon. ``host`` is what DOCKER_HOST takes."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        self.home = home
        self.process = process
        self.host = f"unix://{home}/docker.sock"
        self.cgroup_parent = f"caisson-dockerd-{process.pid}"
        """Where containers lie that say nothing else: not in the folder a daemon of the host would use."""
        self.environment = {**os.environ, "DOCKER_HOST": self.host, "DOCKER_CONFIG": str(home / "config")}

    def cli(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """The docker command against this daemon."""
        return subprocess.run(
            ["/usr/bin/docker", *words], env=self.environment, capture_output=True, text=True, timeout=timeout
        )


@contextmanager
def dockerd(home: Path, *extra: str, files: dict[str, str] | None = None) -> Iterator[Dockerd]:
    """Run one. ``files`` are host files it sees with other contents, in its own mount namespace."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config").mkdir(exist_ok=True)
    (home / "daemon.json").write_text("{}")
    (home / "etc").mkdir(exist_ok=True)
    lines = [
        "ip link set lo up",
        "mount -t tmpfs none /run",  # plug-in and shim sockets have fixed places there
        f"if [ -d /etc/docker ]; then mount --bind {home}/etc /etc/docker; fi",  # and a key there
    ]
    for number, (path, text) in enumerate((files or {}).items()):
        (home / f"file{number}").write_text(text)
        lines.append(f"mount --bind {home}/file{number} {path}")
    words = [
        "dockerd", "--config-file", f"{home}/daemon.json", "--data-root", f"{home}/data", "--exec-root", f"{home}/exec",
        "--pidfile", f"{home}/docker.pid", "-H", f"unix://{home}/docker.sock", "--iptables=false", "--ip6tables=false",
        "--bridge=none", "--ip-forward=false", "--ip-masq=false", "--cgroup-parent=/caisson-dockerd-$$", *extra,
    ]  # fmt: skip
    lines.append("exec " + " ".join(words))
    libc = ctypes.CDLL(None)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "/bin/sh", "-ec", "\n".join(lines)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    daemon = Dockerd(home, process)
    try:
        _await(daemon)
        yield daemon
    finally:
        _end(daemon)


def _await(daemon: Dockerd, timeout: float = 60) -> None:
    import docker

    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if daemon.process.poll() is not None:
            break
        try:
            client = docker.DockerClient(base_url=daemon.host, timeout=5)
            client.ping()
            client.close()
            return
        except Exception:
            time.sleep(0.1)
    tail = (daemon.home / "log").read_text(errors="replace")[-800:]
    raise RuntimeError(f"dockerd did not come up: {tail}")


def _end(daemon: Dockerd) -> None:
    daemon.process.terminate()
    try:
        daemon.process.wait(30)
    except subprocess.TimeoutExpired:
        daemon.process.kill()
        daemon.process.wait()
    for _ in range(100):  # its containerd follows it
        if not _users(daemon.home):
            break
        time.sleep(0.1)
    for pid in _users(daemon.home):
        os.kill(pid, signal.SIGKILL)
    for mount in Path("/sys/fs/cgroup").glob("*"):
        for folder in (*mount.glob(f"{daemon.cgroup_parent}/*"), mount / daemon.cgroup_parent):
            try:
                folder.rmdir()
            except OSError:
                continue
    shutil.rmtree(daemon.home, ignore_errors=True)


def _users(home: Path) -> list[int]:
    """Processes of this daemon: those whose command line names its folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(home) in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
