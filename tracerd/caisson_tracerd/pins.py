"""Loading and unloading: the pins, their file system and their manifest."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from caisson_tracerd import layout as places
from caisson_tracerd import stored
from caisson_tracerd.errors import LoadError, PinsError, PinsOlder
from caisson_tracerd.layout import Layout, is_bpffs
from caisson_tracerd.source import API, remove_pins, source_digest

SYSTEM_PYTHON: Final = "/usr/bin/python3"
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_LOAD_TIMEOUT_S: Final = int(os.environ.get("CAISSON_LOAD_TIMEOUT_S", "120"))  # more for emulated machines
_SHARED_LAYOUT: Final = ("record.h", "lib/maps.h", "lib/sizes.h")
"""Sources that say what programs and daemon share; pins in which these differ cannot be adopted."""


def require_root() -> None:
    if os.geteuid() != 0:
        raise PinsError("tracerd needs root to load BPF programs; run it with sudo or as a service")


def read_manifest(layout: Layout) -> dict[str, Any] | None:
    """The loader's manifest, or None when nothing is loaded."""
    try:
        found: dict[str, Any] = json.loads(layout.manifest.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise PinsError(f"manifest {layout.manifest} is damaged ({problem}); run: tracerd unload, then load") from None
    return found


def check(layout: Layout) -> dict[str, Any] | None:
    """The manifest when the pins are there and ours; None when nothing is loaded; PinsError when they do not fit.

    PinsOlder when they are of another build that writes the same records. A plain user, who may not look at pins, is
    told the manifest.
    """
    manifest = read_manifest(layout)
    if os.geteuid() != 0:
        return manifest
    if manifest is None or not layout.pins.is_dir():
        if layout.pins.is_dir():
            raise PinsError(f"pins under {layout.pins} have no manifest; run: tracerd unload, then load")
        return None
    ours = source_digest(places.sources())
    theirs = manifest.get("sources", {})
    if manifest.get("api") != API or any(theirs.get(name) != ours.get(name) for name in _SHARED_LAYOUT):
        raise PinsError(f"pins under {layout.pins} are of another version; run: tracerd unload, then load")
    if manifest.get("definitions", {}).get("CAISSON_BOX_LEVEL") != layout.box_level:
        raise PinsError(f"pins under {layout.pins} expect boxes at another depth; run: tracerd unload, then load")
    missing = [hook for hook in manifest["hooks"] if not (layout.pins / f"link_{hook}").exists()]
    if missing:
        raise PinsError(f"pins under {layout.pins} lack {', '.join(missing)}; run: tracerd unload, then load")
    if theirs != ours:
        raise PinsOlder(f"pins under {layout.pins} are of another build; run: tracerd unload, then load", manifest)
    return manifest


def illness(layout: Layout, manifest: dict[str, Any]) -> str | None:
    """Whether programs are detached behind the daemon's back: their links live by the pins alone."""
    for hook in manifest["hooks"]:
        if not (layout.pins / f"link_{hook}").exists():
            return f"pin link_{hook} is gone and nothing is recorded there"
    return None


def load(layout: Layout) -> dict[str, Any]:
    """Compile, load and pin in a child process; returns the manifest. Nothing stays behind when it fails."""
    require_root()
    layout.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not Path(SYSTEM_PYTHON).exists():
        raise LoadError(f"{SYSTEM_PYTHON} is missing; the loader needs the distribution's Python and python3-bpfcc")
    if not is_bpffs(layout.pins.parent):
        _mount_bpffs(layout.own_bpffs)
    # A tier that was asked for is compiled: what is kept is what this kernel's own choice was.
    kept, key = stored.folder() if os.environ.get("CAISSON_TIER", "auto") == "auto" else None, ""
    if kept is not None:
        key = stored.key(places.sources(), layout.box_level)
        manifest = _restored(layout, kept, key)
        if manifest is not None:
            return manifest
    command = [SYSTEM_PYTHON, "-I", str(places.loader()), "--sources", str(places.sources())]
    command += ["--pins", str(layout.pins), "--manifest", str(layout.manifest), "--level", str(layout.box_level)]
    command += ["--parent", str(os.getpid())]
    command += ["--cache", str(kept), "--key", key] if kept is not None else []
    try:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=_LOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _clear(layout)
        raise LoadError(f"loading took more than {_LOAD_TIMEOUT_S} s and was given up") from None
    manifest = read_manifest(layout) if done.returncode == 0 else None
    if manifest is None:
        _clear(layout)
        lines = [line for line in done.stderr.strip().splitlines() if line]
        raise LoadError(f"the programs could not be loaded: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return manifest


def _restored(layout: Layout, kept: Path, key: str) -> dict[str, Any] | None:
    """Load what was compiled before; None, with nothing left of it, when that cannot be."""
    from caisson_tracerd import hooked

    try:
        manifest = stored.restore(kept, key, layout.pins, hooked.again)
        part = layout.manifest.with_suffix(".part")
        part.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        part.rename(layout.manifest)
    except (stored.Unusable, OSError):
        if layout.pins.is_dir():
            remove_pins(layout.pins)
        return None
    return manifest


def unload(layout: Layout) -> bool:
    """Remove every pin and our own mount; whether there was anything."""
    require_root()
    return _clear(layout)


def _clear(layout: Layout) -> bool:
    found = layout.manifest.exists()
    layout.manifest.unlink(missing_ok=True)
    layout.manifest.with_suffix(".part").unlink(missing_ok=True)
    if layout.pins.is_dir():
        remove_pins(layout.pins)
        found = True
    if is_bpffs(layout.own_bpffs):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(bytes(layout.own_bpffs), 0) != 0:
            raise PinsError(f"{layout.own_bpffs} could not be unmounted: {os.strerror(ctypes.get_errno())}")
        found = True
    try:
        layout.own_bpffs.rmdir()
    except OSError:
        pass
    return found


def _mount_bpffs(point: Path) -> None:
    point.mkdir(mode=0o700, parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"caisson", bytes(point), b"bpf", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, b"mode=0700") != 0:
        reason = os.strerror(ctypes.get_errno())
        point.rmdir()
        raise LoadError(f"a BPF file system could not be mounted at {point}: {reason}")
