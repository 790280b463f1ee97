"""One machine with a real systemd for all tests of the service, and the package that is installed into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from caisson_tracerd.loader import BTF
from service_machine import Machine

TOP = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "caisson" / "service"


def why_not() -> str | None:
    """The reason why no machine can be booted here."""
    if not os.environ.get("CAISSON_TEST_SERVICE"):
        return "a machine with a systemd of its own is booted by make test-service"
    if os.geteuid() != 0:
        return "a machine with a systemd of its own needs root"
    for tool in ("systemd-nspawn", "mmdebstrap"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (make test-service installs it)"
    if not BTF.exists():
        return "this kernel has no BTF"
    return None


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".run-", dir=CACHE))
    folder.chmod(0o755)
    (folder / "host").mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def package(scratch: Path) -> Path:
    """Built from the tree, without compression."""
    command = [TOP / "packaging/deb/build.sh", scratch / "host"]
    done = subprocess.run(
        command, env={**os.environ, "DEB_COMPRESS": "none"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def bare(scratch: Path) -> Iterator[Machine]:
    """The machine, booted, with nothing of ours."""
    done = subprocess.run([TOP / "packaging/service/image.sh", CACHE], stdout=subprocess.PIPE, text=True, check=True)
    shutil.copy(Path(__file__).with_name("service_story.py"), scratch / "host")
    made = Machine(Path(done.stdout.strip()), scratch)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def machine(bare: Machine, package: Path) -> Machine:
    """The package installed as an operator does it, alice allowed, the service enabled."""
    bare.run("apt-get", "install", "-y", "--no-install-recommends", f"/host/{package.name}", timeout=120)
    assert bare.run("systemctl", "is-enabled", "tracerd", check=False).strip() == "disabled"
    assert bare.run("systemctl", "is-active", "tracerd", check=False).strip() == "inactive"
    edit = 's/^allow = .*/allow = ["alice"]/; s/^#metrics = .*/metrics = "127.0.0.1:9477"/'
    bare.run("sed", "-i", edit, "/etc/caisson/tracerd.toml")
    bare.run("systemctl", "enable", "--now", "tracerd", timeout=120)
    return bare
