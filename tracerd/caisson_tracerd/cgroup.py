"""One box's cgroup: a version 2 directory of our own, and version 1 directories for limits on hybrid hosts.

The version 2 directory is what the kernel programs key on and what freeze and kill work with. A limit goes through
whichever hierarchy owns its controller: version 2 where the controller is available there, else the version 1
hierarchy found in ``/proc/mounts``. A limit nobody can enforce is not an error; it is listed in ``Cgroup.missing``.

Standard library only: the box engine uses this module without the daemon.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caisson_tracerd.errors import CgroupError

RESERVED: Final = "."
"""A name with a dot is never a box: `sweep` leaves it alone (the daemon's ``user.<uid>`` directories)."""

_CPU_PERIOD_US: Final = 100_000
_REMOVE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a box may use. Zero means no limit of this kind; ``cpu_millis`` are thousandths of a core."""

    memory_bytes: int = 0
    pids: int = 0
    cpu_millis: int = 0


def _mounts() -> Iterator[tuple[Path, str, list[str]]]:
    """(mount point, file system type, options) of every mount in this namespace."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split(" ")
        yield Path(fields[1].encode().decode("unicode_escape")), fields[2], fields[3].split(",")


def v2_root() -> Path | None:
    """Mount point of the version 2 hierarchy, or None."""
    return next((point for point, kind, _ in _mounts() if kind == "cgroup2"), None)


def v1_roots() -> dict[str, Path]:
    """Mount point of each version 1 controller this module can use; a container's are often read-only."""
    roots: dict[str, Path] = {}
    for point, kind, options in _mounts():
        if kind == "cgroup" and "ro" not in options:
            roots.update({name: point for name in options if name in ("memory", "pids", "cpu")})
    return roots


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _pairs(path: Path) -> dict[str, int]:
    """The ``key value`` lines of a cgroup file; nothing when the file is absent."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, value: str) -> None:
    """One write(2); a cgroup file reports its errors there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """mkdir with parents, safe against another box's `remove` taking an empty parent away meanwhile."""
    for _ in range(50):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            return
        except FileNotFoundError:
            continue
    raise CgroupError(f"cgroup {path} could not be made: its parent keeps disappearing; try again")


def _offer(v2: Path, parts: tuple[str, ...], wanted: set[str]) -> set[str]:
    """Turn the wanted controllers on from the root down to the box's parent; returns those the box will have."""
    directory = v2
    for part in ("", *parts):
        directory = directory / part if part else directory
        wanted &= _words(directory / "cgroup.controllers")
        granted = _words(directory / "cgroup.subtree_control")
        for name in sorted(wanted - granted):
            try:
                _write(directory / "cgroup.subtree_control", f"+{name}")
            except OSError:
                wanted = wanted - {name}
    return wanted


def _tree(path: Path) -> Iterator[Path]:
    """The cgroup and everything below it, deepest first."""
    for top, _, _ in os.walk(path, topdown=False):
        yield Path(top)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A live cgroup. ``id`` is what the kernel programs see; ``missing`` names limits without a controller."""

    path: Path
    id: int
    missing: tuple[str, ...] = ()
    v1: tuple[Path, ...] = field(default=())

    @classmethod
    def create(cls, name: str, limits: Limits, parent: str = "caisson") -> Cgroup:
        """Make ``<v2>/<parent>/<name>`` with limits. Raises CgroupError; leaves nothing behind when it does."""
        parts = tuple(parent.split("/"))
        if any(not part or part in (".", "..") for part in (*parts, name)) or "/" in name:
            raise CgroupError(f"cgroup name {parent}/{name} is not a plain path; use names without slashes and dots")
        v2 = v2_root()
        if v2 is None:
            raise CgroupError("no version 2 cgroup hierarchy is mounted; run: mount -t cgroup2 none /sys/fs/cgroup")
        path = v2.joinpath(*parts, name)
        made = cls(path, 0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            asked = {"memory": limits.memory_bytes, "pids": limits.pids, "cpu": limits.cpu_millis}
            wanted = {kind for kind, value in asked.items() if value}
            here = _offer(v2, parts, set(wanted))
            _make(path)
            made = cls(path, path.stat().st_ino)
            _limit_v2(path, limits, here)
            roots = v1_roots()
            for kind in sorted((wanted - here) & set(roots)):
                directory = roots[kind].joinpath(*parts, name)
                if directory not in made.v1:  # controllers may share a hierarchy
                    made = cls(path, made.id, (), (*made.v1, directory))
                    if not directory.exists():
                        _make(directory)
                _limit_v1(directory, limits, kind)
            return cls(path, made.id, tuple(sorted(wanted - here - set(roots))), made.v1)
        except FileExistsError:
            raise CgroupError(f"cgroup {path} exists already; another box has this name, or sweep it") from None
        except OSError as problem:
            if made.id:
                made.remove()
            raise CgroupError(f"cgroup {path} could not be made: {problem.strerror}; are you root?") from problem

    @classmethod
    def open(cls, path: Path) -> Cgroup:
        """A cgroup that exists, made by this or another process (a daemon's, after a restart)."""
        try:
            identity = path.stat().st_ino
        except OSError as problem:
            raise CgroupError(f"cgroup {path} is gone: {problem.strerror}") from problem
        v2 = v2_root()
        below = path.relative_to(v2) if v2 is not None and path.is_relative_to(v2) else None
        v1 = {root / below for root in v1_roots().values() if (root / below).is_dir()} if below is not None else set()
        return cls(path, identity, (), tuple(sorted(v1)))

    def add(self, pid: int) -> None:
        """Move a whole process in: limits first, the version 2 directory (where recording begins) last."""
        for directory in (*self.v1, self.path):
            try:
                _write(directory / "cgroup.procs", str(pid))
            except OSError as problem:
                raise CgroupError(f"process {pid} could not join {directory}: {problem.strerror}") from problem

    def pids(self) -> list[int]:
        """Every live process in the cgroup or below it."""
        found: list[int] = []
        for directory in _tree(self.path):
            try:
                found += [int(word) for word in (directory / "cgroup.procs").read_text().split()]
            except OSError:
                continue
        return found

    @property
    def populated(self) -> bool:
        """Whether a live process is inside or below."""
        return bool(_pairs(self.path / "cgroup.events").get("populated"))

    @property
    def frozen(self) -> bool:
        """Whether every process inside stands still."""
        return bool(_pairs(self.path / "cgroup.events").get("frozen"))

    def freeze(self, timeout: float = 5.0) -> None:
        """Stop every process inside and wait until all stand still. CgroupError after ``timeout`` seconds.

        Held until `thaw`: the witness daemon, which may have frozen the box for its own reason, does not thaw it.
        """
        _hold(self.path, timeout)
        self._write_control("cgroup.freeze", "1")
        if not self._wait(lambda: self.frozen, timeout):
            raise CgroupError(f"cgroup {self.path} did not freeze within {timeout:g} s; a process waits in the kernel")

    def thaw(self) -> None:
        """Let the processes run on."""
        try:
            self._write_control("cgroup.freeze", "0")
        finally:
            _let_go(self.path)

    def kill(self) -> None:
        """SIGKILL to every process inside, also frozen ones, also those being forked now."""
        try:
            _write(self.path / "cgroup.kill", "1")
            return
        except FileNotFoundError:
            if not self.path.exists():
                return
        except OSError as problem:
            if problem.errno != errno.EOPNOTSUPP:
                raise CgroupError(f"cgroup {self.path} could not be killed: {problem.strerror}") from problem
        self._kill_one_by_one()

    def _kill_one_by_one(self) -> None:
        """Kernels before 5.14: freeze so that nobody forks away, signal each, thaw so that they die."""
        try:
            self.freeze(1.0)
        except CgroupError:
            pass
        for _ in range(50):
            pids = self.pids()
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            try:
                self.thaw()
            except CgroupError:
                pass  # version 1 has no freeze file
            if not pids:
                return
            self._wait(lambda: not self.populated, 0.1)

    def remove(self) -> None:
        """Remove the cgroup in every hierarchy, with children and parents left empty. Kills what is still inside."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        _let_go(self.path)
        for directory in (self.path, *self.v1):
            while directory.exists() and not _remove_tree(directory):
                if time.monotonic() > deadline:
                    raise CgroupError(f"cgroup {directory} could not be removed: it holds {self.pids() or 'a mount'}")
                self.kill()
                self._wait(lambda: not self.populated, 0.05)
                time.sleep(0.002)
            _remove_empty_parents(directory)

    def stats(self) -> dict[str, int]:
        """What the controllers counted, as far as known: oom_kills, pids_max_hits, memory_peak, cpu_usec."""
        found: dict[str, int | None] = {"cpu_usec": _pairs(self.path / "cpu.stat").get("usage_usec")}
        for directory in (self.path, *self.v1):
            for key, value in (
                ("oom_kills", _pairs(directory / "memory.events").get("oom_kill")),
                ("oom_kills", _pairs(directory / "memory.oom_control").get("oom_kill")),
                ("memory_peak", _number(directory / "memory.peak")),
                ("memory_peak", _number(directory / "memory.max_usage_in_bytes")),
                ("pids_max_hits", _pairs(directory / "pids.events").get("max")),
            ):
                found[key] = value if value is not None else found.get(key)
        return {key: value for key, value in found.items() if value is not None}

    def _write_control(self, name: str, value: str) -> None:
        try:
            _write(self.path / name, value)
        except OSError as problem:
            raise CgroupError(f"cgroup {self.path}: {name} cannot be written: {problem.strerror}") from problem

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for a change of cgroup.events that makes the condition true."""
        deadline = time.monotonic() + timeout
        try:
            descriptor = os.open(self.path / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return condition()
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLPRI)
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                os.pread(descriptor, 256, 0)  # arms the notification
                if not condition():
                    poll.poll(min(left, 0.1) * 1000)
            return True
        finally:
            os.close(descriptor)


_held: dict[Path, int] = {}
"""Freeze files this process holds a lock on, because it wants the cgroup to stand still."""


def _hold(path: Path, timeout: float) -> None:
    """A lock that ends with the process. Where the file cannot be opened, the freeze itself says what is wrong."""
    if path in _held:
        return
    try:
        descriptor = os.open(path / "cgroup.freeze", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:  # the daemon is thawing this very moment
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise CgroupError(f"cgroup {path}: its witness has been thawing it for {timeout:g} s") from None
            time.sleep(0.002)
        except OSError:
            break
    _held[path] = descriptor


def _let_go(path: Path) -> None:
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def thaw_unless_held(path: Path) -> bool:
    """Thaw a cgroup that was frozen for its record, unless somebody holds it frozen (`Cgroup.freeze`)."""
    try:
        descriptor = os.open(path / "cgroup.freeze", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, b"0")
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _limit_v2(path: Path, limits: Limits, here: set[str]) -> None:
    if "memory" in here:
        _write(path / "memory.max", str(limits.memory_bytes))
        if (path / "memory.swap.max").exists():
            _write(path / "memory.swap.max", "0")
    if "pids" in here:
        _write(path / "pids.max", str(limits.pids))
    if "cpu" in here:
        _write(path / "cpu.max", f"{limits.cpu_millis * _CPU_PERIOD_US // 1000} {_CPU_PERIOD_US}")


def _limit_v1(path: Path, limits: Limits, kind: str) -> None:
    if kind == "memory":
        _write(path / "memory.limit_in_bytes", str(limits.memory_bytes))
        if (path / "memory.memsw.limit_in_bytes").exists():
            _write(path / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
    elif kind == "pids":
        _write(path / "pids.max", str(limits.pids))
    elif kind == "cpu":
        _write(path / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
        _write(path / "cpu.cfs_quota_us", str(max(1000, limits.cpu_millis * _CPU_PERIOD_US // 1000)))


def _remove_tree(path: Path) -> bool:
    """Whether the cgroup and its children are gone."""
    for directory in _tree(path):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _remove_empty_parents(path: Path) -> None:
    """Up to the mount point; a parent that still has boxes stays."""
    roots = {v2_root(), *v1_roots().values()}
    for parent in path.parents:
        if parent in roots:
            return
        try:
            parent.rmdir()
        except OSError:
            return


def sweep(parent: str, keep: Callable[[str], bool]) -> list[str]:
    """Kill and remove every box cgroup below ``parent`` whose name ``keep`` refuses; returns the names.

    Directories whose name holds a dot are not boxes and stay (see `RESERVED`).
    """
    roots = [root for root in (v2_root(), *v1_roots().values()) if root is not None]
    names: dict[str, list[Path]] = {}
    for root in roots:
        directory = root.joinpath(*parent.split("/"))
        try:
            children = [child for child in directory.iterdir() if child.is_dir()]
        except OSError:
            continue
        for child in children:
            if RESERVED not in child.name and not keep(child.name):
                names.setdefault(child.name, []).append(child)
    for directories in names.values():
        leftover = Cgroup(directories[0], 0, (), tuple(directories[1:]))
        leftover.kill()
        leftover.remove()
    return sorted(names)
