"""Other versions of the package, made from the one that was built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def repacked(package: Path, target: Path, version: str, change: str = "") -> Path:
    """The same package under another version, its installed version too; ``change`` is a command run in its tree."""
    tree = target / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    old = next(line for line in control.read_text().splitlines() if line.startswith("Version: ")).split()[1]
    control.write_text(control.read_text().replace(f"Version: {old}", f"Version: {version}"))
    metadata = next(tree.glob("usr/lib/caisson/lib/*/site-packages/caisson-*.dist-info/METADATA"))
    metadata.write_text(metadata.read_text().replace(f"Version: {old}", f"Version: {version}"))
    if change:
        subprocess.run(["sh", "-ec", change], check=True, cwd=tree)
    made = target / f"caisson_{version}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(made)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return made
