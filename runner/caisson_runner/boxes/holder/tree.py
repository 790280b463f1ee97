"""Walking and filling a folder that hostile code has written to, without ever leaving it.

Nothing here follows a symbolic link, and no path is longer than one name: every step is relative to an open folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Final

MAX_PATH: Final = 16_384
"""Longest path a walk follows, bytes. A box can nest folders deeper than the kernel's own limit for one call (4096); a
chain of n folders has paths of n²/2 bytes together, which is what this bounds."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK: Final = 1 << 18


class TreeError(Exception):
    """An entry that no honest tree holds; the message names it."""


def walk(top: int) -> Iterator[tuple[bytes, int, bytes, os.stat_result]]:
    """Every entry below ``top``: (path, open folder it lies in, name, lstat), folders first, names in byte order.

    Holds one open folder at a time however deep the tree is. The folder descriptor is valid until the next step.
    """
    here = os.open(b".", _FOLDER, dir_fd=top)
    try:
        waiting: list[tuple[bytes, list[bytes], tuple[int, int]]] = []
        prefix, names, identity = b"", _names(here), _identity(os.fstat(here))
        while True:
            if not names:
                if not waiting:
                    return
                prefix, names, identity = waiting.pop()
                above = os.open(b"..", _FOLDER, dir_fd=here)
                os.close(here)
                here = above
                if _identity(os.fstat(here)) != identity:
                    raise TreeError("the tree was moved while it was read")
                continue
            name = names.pop()
            path = prefix + name
            if len(path) > MAX_PATH:
                raise TreeError(f"a path is longer than {MAX_PATH} bytes")
            status = os.lstat(name, dir_fd=here)
            yield path, here, name, status
            if stat.S_ISDIR(status.st_mode):
                below = os.open(name, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
                waiting.append((prefix, names, identity))
                prefix, names, identity = path + b"/", _names(here), _identity(os.fstat(here))
    finally:
        os.close(here)


def remove(path: str) -> None:
    """Remove a folder and everything in it, however deep it is and whatever rights its folders have. No error if gone.

    Only for trees nobody writes to any more; another runner may be removing the same one.
    """
    try:
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        waiting: list[tuple[bytes, list[bytes]]] = []
        names = _names(here)
        while True:
            if names:
                name = names.pop()
                try:
                    if not stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
                        os.unlink(name, dir_fd=here)
                        continue
                    os.chmod(name, 0o700, dir_fd=here)
                    below = os.open(name, _FOLDER, dir_fd=here)
                except FileNotFoundError:
                    continue
                os.close(here)
                here = below
                waiting.append((name, names))
                names = _names(here)
                continue
            if not waiting:
                break
            name, names = waiting.pop()
            above = os.open(b"..", _FOLDER, dir_fd=here)
            os.close(here)
            here = above
            _remove_folder(name, here)
    except FileNotFoundError:
        return  # a folder went away around us: whoever takes it takes the rest
    finally:
        os.close(here)
    _remove_folder(path, None)


def _remove_folder(name: bytes | str, parent: int | None) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _names(folder: int) -> list[bytes]:
    """Names in reverse byte order, so that pop() gives the first."""
    return sorted((os.fsencode(name) for name in os.listdir(folder)), reverse=True)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of an overlay layer stands for a removed one."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def parts(path: bytes) -> list[bytes]:
    """The names of a relative path. TreeError for empty, dot and NUL parts."""
    names = path.split(b"/")
    # Without a loop over the names: a chain of folders has the square of its length of them.
    if b"" in names or b"." in names or b".." in names or b"\0" in path or max(map(len, names)) > 255:
        raise TreeError(f"{path[:200]!r} is not a plain relative path")
    return names


class Filler:
    """Creates entries below one open folder. ``owner`` is a uid and gid to give everything to, or None."""

    def __init__(self, top: int, owner: int | None, opaque: str) -> None:
        self._top = top
        self._owner = owner
        self._opaque = opaque
        self._folders: list[tuple[bytes, int, int]] = []
        self._cached: tuple[list[bytes], int] | None = None

    def __enter__(self) -> Filler:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._cached:
            os.close(self._cached[1])
            self._cached = None

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        """An open descriptor of the folder the entry goes into, and its name there."""
        *above, name = parts(path)
        near, here = self._cached or ([], os.open(b".", _FOLDER, dir_fd=self._top))
        self._cached = None
        same = min(len(near), len(above))
        if near[:same] != above[:same]:
            same = next(number for number in range(same) if near[number] != above[number])
        # From the last folder, as neighbours come one after the other: from the top each time, a chain of folders
        # would take the square of its length. `..` is safe: nobody else writes to the tree while it is filled.
        for part in (*[b".."] * (len(near) - same), *above[same:]):
            try:
                below = os.open(part, _FOLDER, dir_fd=here)
            except OSError as problem:
                raise TreeError(f"{path[:200]!r} lies below something that is no folder") from problem
            finally:
                os.close(here)
            here = below
        self._cached = (above, here)
        return here, name

    def folder(self, path: bytes, mode: int, mtime: int, opaque: bool = False) -> None:
        """Make a folder, or keep the one that is there; mode and time are set by `finish`."""
        parent, name = self._parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                raise TreeError(f"{path[:200]!r} appears twice") from None
        if opaque:
            descriptor = os.open(name, _FOLDER, dir_fd=parent)
            try:
                os.setxattr(descriptor, self._opaque, b"y")
            finally:
                os.close(descriptor)
        self._folders.append((path, mode, mtime))

    def file(self, path: bytes, mode: int, mtime: int, source: BinaryIO | bytes) -> None:
        """Make a regular file with the source's bytes."""
        parent, name = self._parent(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        except FileExistsError:
            raise TreeError(f"{path[:200]!r} appears twice") from None
        try:
            if isinstance(source, bytes):
                _write(descriptor, source)
            else:
                while chunk := source.read(CHUNK):
                    _write(descriptor, chunk)
            if self._owner is not None:
                os.fchown(descriptor, self._owner, self._owner)
            os.fchmod(descriptor, mode)
            os.utime(descriptor, (mtime, mtime))
        finally:
            os.close(descriptor)

    def link(self, path: bytes, target: bytes, mtime: int) -> None:
        """Make a symbolic link."""
        parent, name = self._parent(path)
        os.symlink(target, name, dir_fd=parent)
        self._give(name, parent)
        os.utime(name, (mtime, mtime), dir_fd=parent, follow_symlinks=False)

    def fifo(self, path: bytes, mode: int) -> None:
        """Make a named pipe."""
        parent, name = self._parent(path)
        os.mkfifo(name, mode, dir_fd=parent)
        self._give(name, parent)

    def whiteout(self, path: bytes) -> None:
        """Mark an entry of the layers below as removed."""
        parent, name = self._parent(path)
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
        self._give(name, parent)

    def same(self, path: bytes, earlier: bytes) -> None:
        """Make a hard link to a file made before."""
        source, old = self._parent(earlier)
        source = os.dup(source)
        try:
            if not stat.S_ISREG(os.lstat(old, dir_fd=source).st_mode):
                raise TreeError(f"{path[:200]!r} is a hard link to something that is no file")
            parent, name = self._parent(path)
            os.link(old, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise TreeError(f"{path[:200]!r} is a hard link to a file that is not there") from None
        finally:
            os.close(source)

    def remove(self, path: bytes) -> None:
        """Take away a non-folder made before (an archive may hold a name twice)."""
        parent, name = self._parent(path)
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass

    def _give(self, name: bytes, parent: int) -> None:
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=parent, follow_symlinks=False)

    def finish(self) -> None:
        """Give folders their modes and times, deepest first."""
        for path, mode, mtime in reversed(self._folders):
            parent, name = self._parent(path)
            self._give(name, parent)
            descriptor = os.open(name, _FOLDER, dir_fd=parent)
            try:
                os.fchmod(descriptor, mode)
                os.utime(descriptor, (mtime, mtime))
            finally:
                os.close(descriptor)
        self._folders.clear()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
