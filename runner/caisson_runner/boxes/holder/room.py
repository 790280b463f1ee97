"""A box's private mounts, made in the holder's own mount namespace."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, Final

from caisson_runner.boxes.holder import calls

PLACES: Final = (b"/mnt", b"/media", b"/srv", b"/opt")
"""Where the holder mounts, hidden from everyone else; the first that exists."""
_SLACK_BYTES: Final = 1 << 20
_SLACK_INODES: Final = 64


class RoomError(Exception):
    """A step that failed: (stage, OSError)."""

    def __init__(self, stage: str, problem: OSError) -> None:
        super().__init__(f"{stage}: {problem.strerror}")
        self.stage = stage
        self.number = problem.errno or 0


class Room:
    """The mounts of one box: ``root`` is the overlay, ``upper`` its writable layer, ``binds`` host things to show."""

    def __init__(self, owner: int | None) -> None:
        """``owner`` is the host uid of everything in the box; None for a plain user's own box."""
        self._spec: dict[str, Any] = {}
        self.owner = owner
        self.rootless = owner is None
        self.place = next((place for place in PLACES if os.path.isdir(place)), b"/tmp")
        self.root, self.upper = self.place + b"/m", self.place + b"/u"
        self.usr = b"/usr"
        """What is shown as /usr on the host base."""
        self.binds: list[tuple[bytes, bytes]] = []
        self.on_disk = False

    def separate(self) -> None:
        """Leave the host's mount namespace; nothing about the box need be known for that."""
        _step("user namespace" if self.rootless else "mount namespace", self._separate)

    def build(self, spec: dict[str, Any], fill: Callable[[int], None] | None) -> None:
        """Make the mounts. ``fill`` gets the open, empty upper folder before the overlay exists."""
        self._spec = spec
        layers = [_step("open snapshot layer", _open, os.fsencode(path)) for path in self._spec["layers"]]
        sources = [_step("open bind source", _open, os.fsencode(path)) for path, _ in self._spec["binds"]]
        disk = os.open(self._spec["disk"], os.O_PATH | os.O_DIRECTORY)
        _step("mount tmpfs", self._mount_tmpfs)
        _step("make upper", self._make_upper, disk)
        if fill is not None:
            descriptor = os.open(self.upper, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fill(descriptor)
            finally:
                os.close(descriptor)
        _step("mount overlay", self._mount_overlay, layers)
        if spec["host_usr"]:
            _step("mount /usr", self._mount_usr)
        for number, (source, (_, target)) in enumerate(zip(sources, self._spec["binds"], strict=True)):
            _step("bind", self._bind, number, source, os.fsencode(target))
        for descriptor in (*layers, *sources, disk):
            os.close(descriptor)

    def adopt(self, upper: bytes, hidden: list[bytes]) -> None:
        """A writable layer that another mounts, on disk; ``hidden`` are the paths where something lies over it."""
        self.upper, self.on_disk = upper, True
        self.binds = [(b"", target) for target in hidden]

    def _separate(self) -> None:
        if self.rootless:
            uid, gid = os.getuid(), os.getgid()
            calls.unshare(calls.CLONE_NEWUSER | calls.CLONE_NEWNS)
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        else:
            os.setgroups([])
            calls.unshare(calls.CLONE_NEWNS)
        calls.mount(b"none", b"/", b"", calls.MS_REC | calls.MS_PRIVATE)

    def _mount_tmpfs(self) -> None:
        size, inodes = self._spec["disk_bytes"], self._spec["inodes"]
        options = b"mode=0755"
        if size:
            options += b",size=%d" % (size + _SLACK_BYTES)
        if inodes:
            options += b",nr_inodes=%d" % (inodes + _SLACK_INODES)
        calls.mount(b"tmpfs", self.place, b"tmpfs", calls.MS_NOSUID | calls.MS_NODEV, options)

    def _make_upper(self, disk: int) -> None:
        base = self.place
        if self.rootless and (self._spec["upper_on_disk"] or not _has_user_attributes(self.place)):
            base, self.on_disk = b"/proc/self/fd/%d" % disk, True
        for name, mode in ((b"u", 0o755), (b"w", 0o755)):
            os.mkdir(base + b"/" + name, mode)
        self.upper, self._work = base + b"/u", base + b"/w"
        if self.on_disk:
            descriptors = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (self.upper, self._work)]
            self.upper, self._work = (b"/proc/self/fd/%d" % descriptor for descriptor in descriptors)
        os.mkdir(self.root, 0o755)
        os.mkdir(self.place + b"/shm")
        os.chmod(self.place + b"/shm", 0o1777)
        if self.owner is not None:
            os.chown(self.upper, self.owner, self.owner)
            os.chown(self.place + b"/shm", self.owner, self.owner)

    def _mount_overlay(self, layers: list[int]) -> None:
        lower = b":".join(b"/proc/self/fd/%d" % descriptor for descriptor in layers)
        options = b"lowerdir=%s,upperdir=%s,workdir=%s,index=off" % (
            lower,
            self.upper,
            self._work,
        )
        options += b",userxattr" if self.rootless else b",redirect_dir=off,metacopy=off"  # userxattr implies them
        calls.mount(b"overlay", self.root, b"overlay", calls.MS_NOSUID | calls.MS_NODEV, options)

    def _mount_usr(self) -> None:
        """A view of its own also of /usr: with a plain bind every box and the host would share each file's locks and
        watches, so that one could signal to, or listen to, another."""
        here = self.place + b"/usr"
        os.mkdir(here)
        try:
            self._mount_view(b"/usr", here)
        except OSError:  # a file system that cannot lie under an overlay: docs/threat-model.md
            return
        self.usr = here

    def _bind(self, number: int, source: int, target: bytes) -> None:
        """Show a host file or folder.

        A folder through an overlay, not by a bind: a unix socket or a named pipe in it would be a way out of the box's
        network (its path is all it takes to connect), and through an overlay nobody listens on it.
        """
        here = self.place + b"/b%d" % number
        name = b"/proc/self/fd/%d" % source
        kind = os.stat(name).st_mode
        if stat.S_ISDIR(kind):
            os.mkdir(here)
            try:
                self._mount_view(name, here)
            except OSError:  # a file system that cannot lie under an overlay
                _refuse_ways_out(name)
                calls.mount(name, here, b"", calls.MS_BIND | calls.MS_REC)
        elif stat.S_ISREG(kind):
            os.close(os.open(here, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            calls.mount(name, here, b"", calls.MS_BIND)
        else:
            raise OSError(errno.EINVAL, "only files and folders can be shown in a box")
        self.binds.append((here, target))

    def _mount_view(self, name: bytes, here: bytes) -> None:
        empty = self.place + b"/e"
        if not os.path.isdir(empty):
            os.mkdir(empty, 0o755)
        options = b"lowerdir=%s:%s" % (name, empty)  # the kernel wants two layers where none is written to
        if self.rootless:
            options += b",userxattr"
        calls.mount(b"overlay", here, b"overlay", calls.MS_RDONLY | calls.MS_NOSUID | calls.MS_NODEV, options)


def _refuse_ways_out(folder: bytes) -> None:
    """OSError when a folder that is bound as it is holds a socket or a pipe."""
    for top, _, names in os.walk(folder + b"/."):
        for name in names:
            mode = os.lstat(os.path.join(top, name)).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                raise OSError(errno.EINVAL, f"it holds a socket or a pipe, {os.fsdecode(name)[:100]}")


def _open(path: bytes) -> int:
    return os.open(path, os.O_PATH)


def _step(stage: str, action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except OSError as problem:
        raise RoomError(stage, problem) from problem


def _has_user_attributes(place: bytes) -> bool:
    """Whether the tmpfs keeps ``user.*`` attributes (kernel 6.6 and later)."""
    try:
        os.setxattr(place, "user.caisson", b"y")
        os.removexattr(place, "user.caisson")
    except OSError:
        return False
    return True
