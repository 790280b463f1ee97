"""The bottom layers: this host's /usr with a synthesized /etc, an imported root filesystem, files copied in."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, cast

from caisson_runner.boxes.errors import RequestError, RootfsRefused
from caisson_runner.boxes.holder.state import PROBLEMS, members
from caisson_runner.boxes.holder.tree import CHUNK, Filler, TreeError, parts, walk

_EPOCH: Final = 1_577_836_800
"""Time of synthesized files (2020-01-01), so that a base does not depend on when it was made."""
FOLDERS: Final[Mapping[bytes, int]] = {
    b"agent": 0o755,
    b"app": 0o755,
    b"dev": 0o755,
    b"etc": 0o755,
    b"home": 0o755,
    b"logs": 0o755,
    b"logs/agent": 0o755,
    b"logs/artifacts": 0o755,
    b"logs/verifier": 0o755,
    b"proc": 0o555,
    b"root": 0o700,
    b"run": 0o755,
    b"solution": 0o755,
    b"tests": 0o755,
    b"tmp": 0o1777,
    b"usr": 0o755,
    b"usr/local": 0o755,
    b"var": 0o755,
    b"var/cache": 0o755,
    b"var/lib": 0o755,
    b"var/log": 0o755,
    b"var/tmp": 0o1777,
}
"""What every box has, whatever its base."""
_LOCAL: Final = (b"bin", b"etc", b"games", b"include", b"lib", b"sbin", b"share", b"src")
_LINKS: Final = (b"bin", b"lib", b"lib32", b"lib64", b"libx32", b"sbin")
_ETC: Final[Mapping[bytes, bytes]] = {
    b"passwd": b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    b"group": b"root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    b"hosts": b"127.0.0.1\tlocalhost box\n::1\tlocalhost ip6-localhost\n",
    b"hostname": b"box\n",
    b"nsswitch.conf": b"passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n",
    b"resolv.conf": b"",
    b"shells": b"/bin/sh\n/bin/bash\n",
}
_COPIED: Final = (
    "alternatives", "bash.bashrc", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "host.conf",
    "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "os-release", "perl",
    "profile", "protocols", "python2.7", "python3", "python3.*", "rpc", "services", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "timezone",
)  # fmt: skip
"""Of the host's /etc, and of these only what everyone on the host may read."""


def host_id() -> str:
    """What the host's /usr is, without reading it: distribution, version, architecture, installed packages."""
    total = hashlib.sha256(platform.machine().encode())
    for name in ("/etc/os-release", "/var/lib/dpkg/status"):
        try:
            total.update(Path(name).read_bytes())
        except OSError:
            total.update(b"none")
    return f"host:{total.hexdigest()[:32]}"


def fill_host(filler: Filler) -> None:
    """The layer that stands on the host's /usr."""
    for path, mode in FOLDERS.items():
        filler.folder(path, mode, _EPOCH)
    for name in _LOCAL:
        filler.folder(b"usr/local/" + name, 0o755, _EPOCH)
    for name in _LINKS:
        try:
            target = os.readlink(b"/" + name)  # noqa: PTH115 - bytes
        except FileNotFoundError:
            continue
        except OSError:
            raise RequestError(
                f"/{name.decode()} is no link into /usr on this host; import a root filesystem tar instead"
            ) from None
        filler.link(name, target, _EPOCH)
    filler.link(b"var/run", b"/run", _EPOCH)
    for name, text in _ETC.items():
        filler.file(b"etc/" + name, 0o644, _EPOCH, text)
    made: set[bytes] = set()
    for pattern in _COPIED:
        for source in sorted(Path("/etc").glob(pattern)):
            target = os.fsencode(source)[1:]
            for depth in range(2, target.count(b"/") + 1):
                above = b"/".join(target.split(b"/")[:depth])
                if above not in made:
                    filler.folder(above, 0o755, _EPOCH)
                    made.add(above)
            copy(filler, source, target, only_public=True)


def fill_missing(filler: Filler, present: set[bytes]) -> None:
    """The folders of `FOLDERS` an imported root filesystem does not have."""
    for path, mode in FOLDERS.items():
        if path not in present:
            for depth in range(1, path.count(b"/") + 1):
                filler.folder(b"/".join(path.split(b"/")[:depth]), 0o755, _EPOCH)
            filler.folder(path, mode, _EPOCH)


def copy(filler: Filler, source: Path, target: bytes, *, only_public: bool = False) -> None:
    """Copy a host file or folder into a layer; links stay links, sockets and devices are refused."""
    status = source.lstat()
    if stat.S_ISDIR(status.st_mode):
        filler.folder(target, _mode(status), int(status.st_mtime))
        top = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for path, folder, name, below in walk(top):
                _copy_one(filler, target + b"/" + path, folder, name, below, only_public)
        finally:
            os.close(top)
    else:
        folder = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _copy_one(filler, target, folder, os.fsencode(source.name), status, only_public)
        finally:
            os.close(folder)


def _copy_one(
    filler: Filler, target: bytes, folder: int, name: bytes, status: os.stat_result, only_public: bool
) -> None:
    mtime = int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        filler.link(target, os.readlink(name, dir_fd=folder), mtime)
    elif stat.S_ISDIR(status.st_mode):
        filler.folder(target, _mode(status), mtime)
    elif not stat.S_ISREG(status.st_mode):
        raise RequestError(f"/{target.decode('utf-8', 'replace')}: only files, folders and links go into a snapshot")
    elif not only_public or status.st_mode & stat.S_IROTH:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
            filler.file(target, _mode(status), mtime, file)


def _mode(status: os.stat_result) -> int:
    """Permission bits without set-uid and set-gid; the owner may always read (and enter folders)."""
    mode = stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
    return mode | (0o700 if stat.S_ISDIR(status.st_mode) else 0o400)


def fill_files(filler: Filler, files: Mapping[str, Path | bytes]) -> None:
    """Copies of host files and folders, and literal files, with the folders above them."""
    made: set[bytes] = set()
    for place, source in sorted(files.items()):
        target = os.fsencode(place).strip(b"/")
        try:
            names = parts(target)
        except TreeError as problem:
            raise RequestError(f"snapshot file {place!r}: {problem}") from None
        for depth in range(1, len(names)):
            above = b"/".join(names[:depth])
            if above not in made:
                filler.folder(above, FOLDERS.get(above, 0o755), _EPOCH)
                made.add(above)
        if isinstance(source, bytes):
            filler.file(target, 0o755 if source.startswith(b"#!") else 0o644, _EPOCH, source)
            continue
        if not source.exists():
            raise RequestError(f"{source} does not exist; it should go to {place} of a snapshot")
        copy(filler, source, target)
        if source.is_dir():
            made.add(target)


def open_archive(path: Path) -> BinaryIO:
    """A tar, plain or compressed with gzip, bzip2, xz or zstd, as a stream."""
    import bz2
    import gzip
    import lzma

    import zstandard

    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return cast("BinaryIO", zstandard.open(path, "rb"))
    if magic.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.open(path, "rb"))
    if magic.startswith(b"BZh"):
        return cast("BinaryIO", bz2.open(path, "rb"))
    if magic.startswith(b"\xfd7zXZ\x00"):
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")


def fill_rootfs(filler: Filler, archive: Path, skipped: list[str]) -> None:
    """Unpack a root filesystem tar. Device nodes, fifos and sockets are left out and named in ``skipped``.

    RootfsRefused for names that leave the folder; owners become the box's root, set-uid bits are dropped.
    """
    seen: dict[bytes, str] = {}
    try:
        with open_archive(archive) as stream:
            for tar, info, raw in members(stream):
                path = _inside(archive, raw)
                if path:
                    _place(filler, tar, info, path, seen, skipped)
    except PROBLEMS as problem:
        raise RootfsRefused(f"{archive}: {problem}; nothing was imported") from problem
    except (EOFError, OSError, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise
        raise RootfsRefused(f"{archive}: no readable tar ({problem}); nothing was imported") from problem


def _inside(archive: Path, raw: bytes) -> bytes:
    """An archive name as a plain relative path; "" for the top itself."""
    names = [name for name in raw.split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise RootfsRefused(f"{archive}: {raw[:200]!r} would leave the root filesystem; nothing was imported")
    return b"/".join(names)


def _place(
    filler: Filler, tar: tarfile.TarFile, info: tarfile.TarInfo, path: bytes, seen: dict[bytes, str], skipped: list[str]
) -> None:
    names = path.split(b"/")
    for depth in range(1, len(names)):  # some archives leave folders out
        above = b"/".join(names[:depth])
        if above not in seen:
            filler.folder(above, 0o755, int(info.mtime))
            seen[above] = "dir"
    if path in seen:
        if info.isdir() and seen[path] == "dir":
            return
        if seen[path] == "dir":
            raise TreeError(f"{path[:200]!r} appears twice")
        filler.remove(path)
    mode = info.mode & 0o1777
    if info.isdir():
        filler.folder(path, mode | 0o700, int(info.mtime))
        seen[path] = "dir"
        return
    if info.isreg():
        filler.file(path, mode | 0o400, int(info.mtime), cast("io.BufferedReader", tar.extractfile(info)))
    elif info.issym():
        filler.link(path, info.linkname.encode("utf-8", "surrogateescape"), int(info.mtime))
    elif info.islnk():
        filler.same(path, _inside(Path(), info.linkname.encode("utf-8", "surrogateescape")))
    else:
        skipped.append(os.fsdecode(path))
        return
    seen[path] = "leaf"


def digest_file(path: Path) -> str:
    """sha256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()
