"""A box's writable layer as a tar: written from the layer, read for its digest, unpacked into a fresh layer.

Form: PAX, names as bytes, owner 0. A removed path is a character device 0/0 (as overlayfs itself has it), a folder
that hides what lies below it carries ``CAISSON.opaque=y``. Sockets are left out: without their process they are
nothing. Times are kept in the tar and are no part of the digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple, cast

from caisson_runner.boxes.holder.tree import CHUNK, Filler, TreeError, is_whiteout, parts, walk

PROBLEMS: Final = (TreeError, tarfile.TarError)
"""What reading or unpacking a bad state raises."""
OPAQUE: Final = "CAISSON.opaque"
_MODE: Final = 0o7777


class Entry(NamedTuple):
    """One path of a layer. ``kind`` is ``file``, ``dir``, ``link``, ``fifo`` or ``whiteout``."""

    path: bytes
    kind: str
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: bytes = b""
    opaque: bool = False


def digest(entries: Iterable[Entry]) -> str:
    """The canonical digest: sha256 over the entries in byte order of their paths, fields closed by NUL."""
    total = hashlib.sha256()
    for entry in sorted(entries):
        fields = (
            entry.path,
            entry.kind.encode(),
            b"%o" % entry.mode,
            b"%d" % entry.size,
            entry.sha256.encode(),
            entry.target,
            b"opaque" if entry.opaque else b"",
        )
        total.update(b"\0".join(fields) + b"\0\n")
    return total.hexdigest()


def opaque_name(rootless: bool) -> str:
    """The extended attribute overlayfs marks hiding folders with."""
    return "user.overlay.opaque" if rootless else "trusted.overlay.opaque"


def _is_opaque(name: bytes, folder: int, attribute: str) -> bool:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.getxattr(descriptor, attribute) == b"y"
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_file(name: bytes, folder: int) -> BinaryIO:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(name, flags, dir_fd=folder), "rb", buffering=0)


def _sha256(source: BinaryIO) -> str:
    total = hashlib.sha256()
    while chunk := source.read(CHUNK):
        total.update(chunk)
    return total.hexdigest()


def entries_of(top: int, rootless: bool) -> Iterator[Entry]:
    """The entries of a layer on disk, contents digested."""
    attribute = opaque_name(rootless)
    for path, folder, name, status in walk(top):
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            yield Entry(path, "dir", mode, opaque=_is_opaque(name, folder, attribute))
        elif stat.S_ISREG(status.st_mode):
            with _open_file(name, folder) as source:
                yield Entry(path, "file", mode, status.st_size, _sha256(source))
        elif stat.S_ISLNK(status.st_mode):
            yield Entry(path, "link", target=os.readlink(name, dir_fd=folder))
        elif stat.S_ISFIFO(status.st_mode):
            yield Entry(path, "fifo", mode)
        elif is_whiteout(status):
            yield Entry(path, "whiteout")
        elif not stat.S_ISSOCK(status.st_mode):
            raise TreeError(f"{path[:200]!r} is a device")


def pack(top: int, out: BinaryIO, rootless: bool, limit: int, without: Sequence[bytes] = ()) -> None:
    """Write the layer below ``top`` as a tar. TreeError when contents, sparse files in full, exceed ``limit``."""
    attribute = opaque_name(rootless)
    skipped = frozenset(without)
    seen: dict[tuple[int, int], str] = {}
    left = limit
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, folder, name, status in walk(top):
            if path in skipped:
                continue
            info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
            info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
            left -= len(path)
            if stat.S_ISREG(status.st_mode):
                identity = (status.st_dev, status.st_ino)
                if identity in seen:
                    info.type, info.linkname = tarfile.LNKTYPE, seen[identity]
                else:
                    if status.st_nlink > 1:
                        seen[identity] = info.name
                    info.size = status.st_size
                    left -= status.st_size
                    if left >= 0:
                        with _open_file(name, folder) as source:
                            tar.addfile(info, source)
                        _forget(tar)
                        continue
            elif stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                if _is_opaque(name, folder, attribute):
                    info.pax_headers = {OPAQUE: "y"}
            elif stat.S_ISLNK(status.st_mode):
                info.type = tarfile.SYMTYPE
                info.linkname = os.readlink(name, dir_fd=folder).decode("utf-8", "surrogateescape")
            elif stat.S_ISFIFO(status.st_mode):
                info.type = tarfile.FIFOTYPE
            elif is_whiteout(status):
                info.type = tarfile.CHRTYPE
            else:
                continue
            if left < 0:
                raise TreeError(f"its files and names come to more than {limit} bytes")
            tar.addfile(info)
            _forget(tar)


def _forget(tar: tarfile.TarFile) -> None:
    """tarfile keeps every member it has seen; 200 000 of them are 200 MB."""
    vars(tar)["members"].clear()


def members(stream: BinaryIO) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, bytes]]:
    """The members of a tar stream with their names as bytes; holds none of them."""
    try:
        with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            while (info := tar.next()) is not None:
                _forget(tar)
                if info.issparse():
                    raise TreeError(f"{info.name[:200]!r} is a sparse member")
                yield tar, info, info.name.encode("utf-8", "surrogateescape")
    except tarfile.TarError as problem:
        raise TreeError(f"no readable tar: {problem}") from problem


def read(stream: BinaryIO) -> list[Entry]:
    """The entries of a state tar. TreeError for anything `pack` never writes."""
    found: dict[bytes, Entry] = {}
    for tar, info, path in members(stream):
        parts(path)
        if path in found:
            raise TreeError(f"{path[:200]!r} appears twice")
        mode = info.mode & _MODE
        if info.isreg():
            content = _sha256(cast("BinaryIO", tar.extractfile(info)))
            found[path] = Entry(path, "file", mode, info.size, content)
        elif info.islnk():
            earlier = found.get(_target(info))
            if earlier is None or earlier.kind != "file":
                raise TreeError(f"{path[:200]!r} is a hard link to a file that is not there")
            found[path] = earlier._replace(path=path)
        elif info.isdir():
            found[path] = Entry(path, "dir", mode, opaque=info.pax_headers.get(OPAQUE) == "y")
        elif info.issym():
            found[path] = Entry(path, "link", target=_target(info))
        elif info.isfifo():
            found[path] = Entry(path, "fifo", mode)
        elif info.ischr() and info.devmajor == info.devminor == 0:
            found[path] = Entry(path, "whiteout")
        else:
            raise TreeError(f"{path[:200]!r} is of a kind no state holds")
    return list(found.values())


def _target(info: tarfile.TarInfo) -> bytes:
    return info.linkname.encode("utf-8", "surrogateescape")


def _covers(prefix: bytes, path: bytes) -> bool:
    return path == prefix or path.startswith(prefix + b"/")


def unpack(
    stream: BinaryIO, top: int, rootless: bool, owner: int | None, without: Sequence[bytes] = (), readable: bool = False
) -> None:
    """Fill the layer below ``top`` from a state tar.

    ``without`` are path prefixes left out, and what hides them above (a whiteout, a file, an opaque mark) too, so that
    the snapshot's version shows. ``readable`` adds the owner's read right to modes, for layers that must stay
    verifiable. Raises TreeError for an entry `pack` never writes, OSError when the layer is full.
    """
    stash = b".caisson-unpacking"
    stashed: dict[bytes, bytes] = {}
    with Filler(top, owner, opaque_name(rootless)) as filler:
        for tar, info, path in members(stream):
            mode = info.mode & _MODE
            left_out = any(_covers(prefix, path) for prefix in without)
            above = any(prefix.startswith(path + b"/") for prefix in without)
            if info.isreg():
                source = cast("BinaryIO", tar.extractfile(info))
                place = path
                if left_out or above:  # a later hard link may still want the content
                    if not stashed:
                        filler.folder(stash, 0o700, 0)
                    place = stashed[path] = stash + b"/%d" % len(stashed)
                filler.file(place, mode | 0o400 if readable else mode, int(info.mtime), source)
            elif left_out or (above and not info.isdir()):
                if info.islnk():
                    earlier = _target(info)
                    stashed[path] = stashed.get(earlier, earlier)
            elif info.islnk():
                earlier = _target(info)
                filler.same(path, stashed.get(earlier, earlier))
            elif info.isdir():
                hiding = info.pax_headers.get(OPAQUE) == "y" and not above
                filler.folder(path, mode | 0o700 if readable else mode, int(info.mtime), hiding)
            elif info.issym():
                filler.link(path, _target(info), int(info.mtime))
            elif info.isfifo():
                filler.fifo(path, mode)
            elif info.ischr() and info.devmajor == info.devminor == 0:
                filler.whiteout(path)
            else:
                raise TreeError(f"{path[:200]!r} is of a kind no state holds")
        for place in stashed.values():
            if place.startswith(stash + b"/"):
                filler.remove(place)
        filler.finish()
    if stashed:
        os.rmdir(stash, dir_fd=top)
