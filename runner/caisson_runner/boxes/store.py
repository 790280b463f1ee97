"""The store: snapshots as stacks of content-addressed layers, and the traces of live boxes.

    layers/<digest>/fs/            the files of one layer, as overlayfs takes them
    layers/<digest>/manifest.json  one line per entry; its canonical digest is the layer's name
    snapshots/<id>.json            layers bottom first, base, environment, working directory, label
    boxes/<id>/                    one folder per live box, with the process that owns it

A layer is written beside its place and renamed when whole, so a killed runner leaves no half layer under a real name.
A layer is compared with its manifest once per process, before the first fork from it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_runner.boxes import owner
from caisson_runner.boxes.errors import (
    DiskFull,
    RequestError,
    SnapshotChanged,
    SnapshotInUse,
    SnapshotNotFound,
)
from caisson_runner.boxes.holder.state import Entry, digest, entries_of, opaque_name
from caisson_runner.boxes.holder.tree import Filler, TreeError, remove

BOX_UID: Final = 508_949
"""The host uid and gid that own everything of a box when the runner is root; 0 in the box."""


def home() -> Path:
    """Where the store lies: $CAISSON_HOME, else /var/lib/caisson for root, else the user's data folder."""
    if given := os.environ.get("CAISSON_HOME"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/caisson")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "caisson"


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """What a snapshot is made of, bottom up."""

    base: str | Path = "host"
    """``host`` (this machine's /usr, read-only), an id or label, or the path of a root filesystem tar."""
    files: Mapping[str, Path | bytes] = field(default_factory=dict)
    """In-box path to a host file or folder that is copied, or to a file's bytes."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/app"
    run: tuple[str, ...] = ()
    """Shell lines executed one after the other in a box whose state becomes the top layer."""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable state boxes are forked from."""

    id: str
    layers: tuple[str, ...]
    """Digests, bottom first."""
    base: str
    """``host:<digest of the host's packages>`` or ``rootfs:<digest>``."""
    host_usr: bool
    env: Mapping[str, str]
    workdir: str
    label: str = ""
    created: float = 0.0

    def identity(self) -> dict[str, Any]:
        """What the id is the digest of."""
        return {
            "layers": list(self.layers),
            "base": self.base,
            "host_usr": self.host_usr,
            "env": dict(sorted(self.env.items())),
            "workdir": self.workdir,
        }


def snapshot_id(identity: dict[str, Any]) -> str:
    """sha256 over the canonical JSON of a snapshot's identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Store:
    """The store below one folder. Layers verified by this process are remembered here."""

    def __init__(self, folder: Path | None = None) -> None:
        self.home = folder or home()
        self.rootless = os.geteuid() != 0 or not owner.is_mapped(BOX_UID)
        self.owner = None if self.rootless else BOX_UID
        self.host_layer = ""
        """The layer on this host's /usr, once this process has made it."""
        self.verified: dict[str, dict[bytes, Entry]] = {}
        with _disk(self.home):
            for name in ("layers", "snapshots", "boxes"):
                (self.home / name).mkdir(parents=True, exist_ok=True)

    def layer_files(self, layer: str) -> Path:
        """The folder overlayfs mounts."""
        return self.home / "layers" / layer / "fs"

    def add_layer(self, fill: Callable[[Filler], None]) -> str:
        """Make a layer from what ``fill`` creates; returns its digest. Making the same layer again is free."""

        def with_filler(descriptor: int) -> None:
            with Filler(descriptor, self.owner, opaque_name(self.rootless)) as filler:
                fill(filler)
                filler.finish()

        return self.add_layer_at(with_filler)

    def add_layer_at(self, fill: Callable[[int], None]) -> str:
        """As `add_layer`, with an open folder to fill."""
        with _disk(self.home), self._beside("layers") as work:
            (work / "fs").mkdir(mode=0o755)
            (work / "fs").chmod(0o755)
            descriptor = os.open(work / "fs", os.O_RDONLY | os.O_DIRECTORY)
            try:
                if self.owner is not None:
                    os.fchown(descriptor, self.owner, self.owner)
                fill(descriptor)
                entries = sorted(entries_of(descriptor, self.rootless))
            finally:
                os.close(descriptor)
            name = digest(entries)
            with (work / "manifest.json").open("w") as manifest:
                manifest.writelines(_line(entry) for entry in entries)
                manifest.flush()
                os.fsync(manifest.fileno())
            work.chmod(0o755)
            try:
                work.rename(self.home / "layers" / name)
                self.verified[name] = {entry.path: entry for entry in entries}
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            return name

    def add_snapshot(
        self, layers: tuple[str, ...], base: str, host_usr: bool, env: Mapping[str, str], workdir: str, label: str
    ) -> Snapshot:
        """Describe a stack of layers; a label moves to the newest snapshot that claims it."""
        made = Snapshot("", layers, base, host_usr, dict(env), workdir, label, time.time())
        made = Snapshot(snapshot_id(made.identity()), layers, base, host_usr, dict(env), workdir, label, made.created)
        with _disk(self.home):
            if label:
                for other in self.list():
                    if other.label == label and other.id != made.id:
                        self._write(Snapshot(**{**asdict(other), "layers": other.layers, "label": ""}))
            existing = self.home / "snapshots" / f"{made.id}.json"
            if not label and existing.exists():
                return self._read(existing)
            self._write(made)
        return made

    def _write(self, snapshot: Snapshot) -> None:
        text = json.dumps(asdict(snapshot), indent=1)
        with self._beside("snapshots") as work:
            (work / "new").write_text(text)
            (work / "new").rename(self.home / "snapshots" / f"{snapshot.id}.json")

    def list(self) -> list[Snapshot]:
        """Every snapshot, newest first. A file that is no snapshot raises SnapshotChanged."""
        found = [self._read(path) for path in (self.home / "snapshots").glob("*.json")]
        return sorted(found, key=lambda snapshot: -snapshot.created)

    def _read(self, path: Path) -> Snapshot:
        try:
            fields = json.loads(path.read_text())
            snapshot = Snapshot(**{**fields, "layers": tuple(fields["layers"])})
            whole = snapshot_id(snapshot.identity()) == snapshot.id == path.stem
        except FileNotFoundError:
            raise SnapshotNotFound(f"snapshot {path.stem[:12]} was pruned meanwhile; create it again") from None
        except (OSError, ValueError, TypeError, KeyError) as problem:
            raise SnapshotChanged(
                f"snapshot {path.stem[:12]}: {path} cannot be read ({problem}); prune it"
            ) from problem
        if not whole:
            raise SnapshotChanged(
                f"snapshot {path.stem[:12]}: {path} differs from its id; prune it and create it again"
            )
        return snapshot

    def find(self, name: str) -> Snapshot:
        """By label, id or a prefix of an id of at least four characters."""
        everything = self.list()
        matches = [one for one in everything if one.label == name or one.id == name]
        if not matches and len(name) >= 4:
            matches = [one for one in everything if one.id.startswith(name)]
        if not matches:
            raise SnapshotNotFound(f"no snapshot {name!r}; see: caisson-run snapshot list")
        if len(matches) > 1:
            raise RequestError(f"{name!r} stands for {len(matches)} snapshots; give more of the id")
        return matches[0]

    def open(self, name: str) -> Snapshot:
        """`find`, and make sure that every file is as the manifest says."""
        snapshot = self.find(name)
        self.verify(snapshot)
        return snapshot

    def verify(self, snapshot: Snapshot) -> None:
        """Compare each layer with its manifest, once per process. SnapshotChanged names the first file that differs."""
        for layer in snapshot.layers:
            if layer not in self.verified:
                self.verified[layer] = self._verify_layer(snapshot, layer)

    def _verify_layer(self, snapshot: Snapshot, layer: str) -> dict[bytes, Entry]:
        title = f"snapshot {snapshot.id[:12]}: layer {layer[:12]}"
        remedy = "prune it and create it again"
        try:
            with (self.home / "layers" / layer / "manifest.json").open() as lines:
                expected = {entry.path: entry for entry in map(_entry, lines)}
            descriptor = os.open(self.layer_files(layer), os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise SnapshotChanged(f"{title} cannot be read ({problem}); {remedy}") from problem
        try:
            if digest(expected.values()) != layer:
                raise SnapshotChanged(f"{title}: its manifest was changed; {remedy}")
            seen = 0
            for entry in entries_of(descriptor, self.rootless):
                seen += 1
                if expected.get(entry.path) != entry:
                    raise SnapshotChanged(f"{title}: {_show(entry.path)} differs from its manifest; {remedy}")
            if seen != len(expected):
                present = {entry.path for entry in entries_of(descriptor, self.rootless)}
                missing = min(expected.keys() - present)
                raise SnapshotChanged(f"{title}: {_show(missing)} is missing; {remedy}")
        except (OSError, TreeError) as problem:
            raise SnapshotChanged(f"{title} cannot be read ({problem}); {remedy}") from problem
        finally:
            os.close(descriptor)
        return expected

    def index(self, snapshot: Snapshot) -> dict[bytes, Entry]:
        """What a fresh fork of the snapshot holds: path to entry, layers merged as overlayfs does."""
        self.verify(snapshot)
        merged: dict[bytes, Entry] = {}
        for layer in snapshot.layers:
            entries = self.verified[layer]
            hidden = tuple(
                entry.path + b"/"
                for entry in entries.values()
                if entry.kind not in ("dir",) or entry.opaque
                if entry.path in merged and merged[entry.path].kind == "dir"
            )
            if hidden:
                merged = {path: entry for path, entry in merged.items() if not path.startswith(hidden)}
            for path, entry in entries.items():
                if entry.kind == "whiteout":
                    merged.pop(path, None)
                else:
                    merged[path] = entry
        return merged

    def prune(self, names: Sequence[str] | None = None) -> Sequence[str]:
        """Remove the named snapshots, or every unlabelled one that no live box uses, and layers nobody needs.

        Returns the removed ids. SnapshotInUse when a named one has a live box.
        """
        used = {record.snapshot for record in owner.boxes(self.home) if record.alive}
        if names is None:
            doomed = [one for one in self.list() if not one.label and one.id not in used]
        else:
            doomed = [self.find(name) for name in names]
            for one in doomed:
                if one.id in used:
                    raise SnapshotInUse(f"snapshot {one.id[:12]} has a live box; end that run first")
        for one in doomed:
            (self.home / "snapshots" / f"{one.id}.json").unlink(missing_ok=True)
        kept = {layer for one in self.list() for layer in one.layers}
        for folder in (self.home / "layers").iterdir():
            if not folder.name.startswith(".") and folder.name not in kept:
                self.verified.pop(folder.name, None)
                if self.host_layer == folder.name:
                    self.host_layer = ""
                grave = folder.with_name(f".old-{folder.name}")
                folder.rename(grave)
                remove(str(grave))
        return [one.id for one in doomed]

    @contextmanager
    def _beside(self, kind: str) -> Iterator[Path]:
        """A work folder next to the real ones, gone afterwards (or renamed into its place)."""
        work = Path(tempfile.mkdtemp(prefix=f".new-{owner.mark()}-", dir=self.home / kind))
        try:
            yield work
        finally:
            remove(str(work))


@contextmanager
def _disk(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room left below {place}; free some, or set CAISSON_HOME to another disk") from problem
        if problem.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise RequestError(
                f"{problem.filename or place} cannot be written ({problem.strerror}); set CAISSON_HOME"
            ) from problem
        raise


def _show(path: bytes) -> str:
    """A path for a message: printable, bounded."""
    return "/" + "".join(char if char.isprintable() else "?" for char in path.decode("utf-8", "replace"))[:300]


def _line(entry: Entry) -> str:
    fields = {"p": os.fsdecode(entry.path), "t": entry.kind}
    extra = {
        "m": entry.mode,
        "s": entry.size,
        "h": entry.sha256,
        "l": os.fsdecode(entry.target),
        "o": entry.opaque,
    }
    return json.dumps({**fields, **{key: value for key, value in extra.items() if value}}) + "\n"


def _entry(line: str) -> Entry:
    fields = json.loads(line)
    return Entry(
        os.fsencode(fields["p"]),
        fields["t"],
        fields.get("m", 0),
        fields.get("s", 0),
        fields.get("h", ""),
        os.fsencode(fields.get("l", "")),
        fields.get("o", False),
    )
