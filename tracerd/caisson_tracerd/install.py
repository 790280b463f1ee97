"""Laying down and taking up the systemd service: unit, folders, configuration. Doing it twice changes nothing.

The Debian package is filled by the same code (``--root``), so there is one text of each file.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_tracerd import pins
from caisson_tracerd.config import CONFIG
from caisson_tracerd.errors import TracerdError, UsageError
from caisson_tracerd.layout import STATE_DIR, Layout

UNIT: Final = "tracerd.service"
PACKAGED_UNIT: Final = Path("/usr/lib/systemd/system") / UNIT
_HERE: Final = Path(__file__).resolve().parent
_HOMES: Final = ("home", "root", "run/user")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files go. ``root`` is / or the tree of a package that is being built."""

    root: Path
    unit_dir: Path = Path("etc/systemd/system")
    tmpfiles_dir: Path = Path("etc/tmpfiles.d")

    @property
    def unit(self) -> Path:
        return self.root / self.unit_dir / UNIT

    @property
    def tmpfiles(self) -> Path:
        return self.root / self.tmpfiles_dir / "caisson.conf"

    @property
    def config(self) -> Path:
        return self.root / CONFIG.relative_to("/")


def install(places: Places, command: Path) -> list[str]:
    """Write what differs; one line for each file. TracerdError when others than root could change the command."""
    live = places.root == Path("/")
    if live:
        pins.require_root()
        _only_packaged_once()
        _only_root_writes(command)
    home = "read-only" if any(command.is_relative_to(f"/{name}") for name in _HOMES) else "yes"
    unit = template(UNIT).replace("@TRACERD@", str(command)).replace("@HOME@", home)
    said = [
        _write(places.unit, unit),
        _write(places.tmpfiles, template("caisson.conf")),
        f"kept      {places.config}" if places.config.exists() else _write(places.config, template("tracerd.toml")),
    ]
    if live:
        _run("systemd-tmpfiles", "--create", str(places.tmpfiles))
        if booted():
            _run("systemctl", "daemon-reload")
    return said


def uninstall(layout: Layout, purge: bool) -> list[str]:
    """Stop the service, remove pins and files; boxes that are open lose their witness. Configuration and journals
    stay unless ``purge``."""
    pins.require_root()
    places = Places(Path("/"))
    _only_packaged_once()
    if booted() and places.unit.exists():
        _run("systemctl", "disable", "--now", UNIT)
    said = ["removed   pins"] if pins.unload(layout) else []
    gone = [places.unit, places.tmpfiles, *([places.config] if purge else [])]
    for path in gone:
        if path.exists():
            path.unlink()
            said.append(f"removed   {path}")
    if booted():
        _run("systemctl", "daemon-reload")
    if purge:
        shutil.rmtree(layout.state_dir, ignore_errors=True)
        said.append(f"removed   {layout.state_dir}")
        for folder in (places.config.parent, STATE_DIR.parent):
            try:
                folder.rmdir()
            except OSError:
                pass  # something of somebody else's lies there, or it is gone
    return said


def own_command() -> Path:
    """The ``tracerd`` beside this interpreter, or the one this process was started as."""
    beside = Path(sys.executable).parent / "tracerd"
    return beside if beside.exists() else Path(sys.argv[0]).absolute()


def template(name: str) -> str:
    """One of the files in ``tracerd/systemd``."""
    for folder in (_HERE / "_systemd", _HERE.parent / "systemd"):
        if (folder / name).is_file():
            return (folder / name).read_text()
    raise TracerdError(f"{name} is missing from this installation; reinstall caisson")


def booted() -> bool:
    """Whether systemd is the machine's init, as sd_booted(3) tells."""
    return Path("/run/systemd/system").is_dir()


def _write(path: Path, text: str) -> str:
    if path.exists() and path.read_text() == text:
        return f"unchanged {path}"
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.chmod(0o644)
    part.rename(path)
    return f"written   {path}"


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise TracerdError(f"{words[0]} is missing; this machine has no systemd, run: tracerd serve") from None
    except subprocess.TimeoutExpired:
        raise TracerdError(f"{' '.join(words)} did not end within 120 s; look at: journalctl -u tracerd") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TracerdError(f"{' '.join(words)} failed: {last}")


def _only_packaged_once() -> None:
    if PACKAGED_UNIT.exists():
        raise UsageError(f"{PACKAGED_UNIT} belongs to the Debian package; manage the service with apt and systemctl")


def _only_root_writes(command: Path) -> None:
    """A service of root's must not run what others may change."""
    for start in (command, command.resolve(), Path(sys.executable).resolve(), _HERE):
        for path in (start, *start.parents):
            found = path.lstat()
            group = found.st_mode & stat.S_IWGRP and found.st_gid != 0
            loose = (group or found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or (loose and not stat.S_ISLNK(found.st_mode)):
                owner = f"uid {found.st_uid}" if found.st_uid else f"group {found.st_gid} or others"
                raise UsageError(
                    f"{path} can be changed by {owner}, who would be root through the service; install as root "
                    "where only root writes, or use the Debian package"
                )
    if not os.access(command, os.X_OK):
        raise UsageError(f"{command} cannot be executed; name the command with --command")
