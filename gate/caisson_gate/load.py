"""A policy file and the bundles it names, read from this host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from caisson_gate.errors import PolicyError
from caisson_gate.named import named_rules
from caisson_gate.policy import MAX_BYTES, Policy, parse, parse_bundle
from caisson_gate.rules import Rule

_NAME = re.compile(r"([a-z0-9][a-z0-9-]{0,63})(?:@([0-9]{1,6}))?", re.ASCII)


def load(path: Path, environment: Mapping[str, str] | None = None) -> Policy:
    """Read a policy file. PolicyError for anything but a good one, also when it is missing or no file."""
    return parse(read(path), str(path), lambda name: bundle(name, environment))


def read(path: Path) -> bytes:
    """The bytes of a file that is not larger than a policy may be."""
    try:
        if not path.is_file():
            raise PolicyError(str(path), "is a folder or device; name a file" if path.exists() else "does not exist")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise PolicyError(str(path), f"cannot be read ({problem.strerror})") from None


def policies() -> Path:
    """The folder of the bundles that come with the gate: in an installed package, else in the source tree."""
    package = Path(__file__).resolve().parent
    installed = package / "_policies"
    return installed if installed.is_dir() else package.parent / "policies"


def bundle(name: str, environment: Mapping[str, str] | None = None) -> Sequence[Rule]:
    """The rules of a bundle: `pip`, `npm` and `apt` from this host's own clients, others from the gate's folder."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError("is no bundle's name; write name, or name@version")
    derived = None if match[2] else named_rules(match[1], environment)
    if derived is not None:
        return derived
    path = policies() / f"{match[1]}.toml"
    if match[1] not in bundle_names():
        raise ValueError(f"is no bundle; there are apt, npm, pip, {', '.join(bundle_names())}")
    version, rules = parse_bundle(read(path), str(path))
    if match[2] and int(match[2]) != version:
        raise ValueError(f"is at version {version} here; write {match[1]}@{version} after reading what changed")
    return rules


def bundle_names() -> list[str]:
    """The bundles of the folder."""
    return sorted(path.stem for path in policies().glob("*.toml") if path.stem != "mirrors")
