"""A snapshot as a Docker image: each layer of the store a layer of the image, and one more with what a container needs.

The image is made once and found by the snapshot's id afterwards. Layers are handed over by ``docker load``, so two
snapshots on one base share it in the daemon too, and no registry is asked for anything.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from caisson_runner.boxes.holder.state import opaque_name
from caisson_runner.boxes.holder.tree import is_whiteout, walk
from caisson_runner.boxes.store import Snapshot, Store

INIT: Final = "/.box-init"
"""Where the box's init is shown in the container."""
REPOSITORY: Final = "caisson-snapshot"
LABEL_STORE: Final = "caisson.store"
_NOBODY: Final = 65534
_TIME: Final = 1_577_836_800
_EMPTY: Final = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
"""Docker or we lie files over these; where a base lacks them, making the place must not become a change."""


def tag(snapshot: Snapshot) -> str:
    """The image's name. The last part changes when this module makes images another way."""
    return f"{REPOSITORY}:{snapshot.id}-1"


def host_usr() -> dict[str, Path]:
    """What of this host's /usr a container is shown, one bind each: all but /usr/local, which belongs to the box."""
    return {f"/usr/{entry.name}": entry for entry in sorted(Path("/usr").iterdir()) if _is_shown(entry)}


def _is_shown(entry: Path) -> bool:
    return entry.name != "local" and not entry.is_symlink()


def archive(store: Store, snapshot: Snapshot, out: IO[bytes]) -> None:
    """Write what ``docker load`` takes."""
    digests: list[str] = []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar, tempfile.TemporaryFile() as scratch:
        for number in range(len(snapshot.layers) + 1):
            scratch.seek(0)
            scratch.truncate()
            if number < len(snapshot.layers):
                _write_layer(store.layer_files(snapshot.layers[number]), scratch, store.rootless)
            else:
                _write_furniture(set(store.index(snapshot)), snapshot.host_usr, scratch)
            scratch.seek(0)
            digests.append(hashlib.file_digest(scratch, "sha256").hexdigest())
            info = tarfile.TarInfo(f"{number}/layer.tar")
            info.size = scratch.tell()
            scratch.seek(0)
            tar.addfile(info, scratch)
        config = json.dumps(_config(store, snapshot, digests)).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        layers = [f"{number}/layer.tar" for number in range(len(digests))]
        manifest = [{"Config": name, "RepoTags": [tag(snapshot)], "Layers": layers}]
        for member, data in ((name, config), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _config(store: Store, snapshot: Snapshot, digests: list[str]) -> dict[str, Any]:
    labels = {LABEL_STORE: str(store.home), "caisson.snapshot": snapshot.id}
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": "2020-01-01T00:00:00Z",
        "config": {"Entrypoint": [INIT], "WorkingDir": "/", "Env": _environment(snapshot.env), "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created": "2020-01-01T00:00:00Z", "created_by": "caisson"} for _ in digests],
    }


def _environment(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(variables.items())]


def _write_layer(folder: Path, out: IO[bytes], rootless: bool) -> None:
    """A layer of the store as a layer of an image: everything the box's root's, removed names as ``.wh.`` files."""
    attribute = opaque_name(rootless)
    seen: dict[tuple[int, int], str] = {}
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            for path, where, name, status in walk(top):
                _add(tar, path.decode("utf-8", "surrogateescape"), where, name, status, seen, attribute)
    finally:
        os.close(top)


def _add(
    tar: tarfile.TarFile,
    path: str,
    where: int,
    name: bytes,
    status: os.stat_result,
    seen: dict[tuple[int, int], str],
    attribute: str,
) -> None:
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    identity = (status.st_dev, status.st_ino)
    if is_whiteout(status):
        folder, _, last = path.rpartition("/")
        tar.addfile(_file(f"{folder}/.wh.{last}".lstrip("/"), 0o600))
    elif stat.S_ISREG(status.st_mode) and identity in seen:
        info.type, info.linkname = tarfile.LNKTYPE, seen[identity]
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        seen[identity] = path
        info.size = status.st_size
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where), "rb") as source:
            tar.addfile(info, source)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
        try:
            hides = os.getxattr(descriptor, attribute) == b"y"
        except OSError:
            hides = False
        finally:
            os.close(descriptor)
        if hides:
            tar.addfile(_file(f"{path}/.wh..wh..opq", 0o600))
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=where).decode("utf-8", "surrogateescape")
        tar.addfile(info)
    elif stat.S_ISFIFO(status.st_mode):
        info.type = tarfile.FIFOTYPE
        tar.addfile(info)
    vars(tar)["members"].clear()  # tarfile keeps every member it has seen


def _file(path: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = mode, _TIME
    return info


def _write_furniture(present: set[bytes], with_usr: bool, out: IO[bytes]) -> None:
    """Places for what is mounted over the image, so that making them is no change of the box.

    On the host's /usr, that folder itself is given to nobody: without capabilities the box's root cannot put anything
    beside the mounts.
    """
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(_file(INIT[1:], 0o444))
        for name in ("dev", "proc", "sys", "etc"):
            if name.encode() not in present:
                tar.addfile(_folder(name, 0))
        for name in _EMPTY:
            if name.encode() not in present:
                tar.addfile(_file(name, 0o644))
        if with_usr:
            tar.addfile(_folder("usr", _NOBODY))
            for place in host_usr():
                tar.addfile(_folder(place[1:], 0))
            for entry in sorted(Path("/usr").iterdir()):
                if entry.is_symlink():
                    info = tarfile.TarInfo(str(entry)[1:])
                    info.type, info.linkname, info.mtime = tarfile.SYMTYPE, str(entry.readlink()), _TIME
                    tar.addfile(info)


def _folder(path: str, owner: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.mtime, info.uid, info.gid = tarfile.DIRTYPE, 0o755, _TIME, owner, owner
    return info
