"""One-line apt sources for another Debian suite, derived from this machine's own: only the suite is exchanged.

    python3 sources.py bullseye

Reads deb822 files and one-line files under ``/etc/apt``. What is not Debian's own archive is left out, recognised by
the suites it offers: they must be the running release's. Suites that are built from snapshots or long past have no
fresh release file, so its age is not checked (signatures are).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROLLING = ("sid", "unstable", "forky", "testing")
"""Suites without updates and security of their own here."""


@dataclass(frozen=True)
class Source:
    """One archive of the machine."""

    uri: str
    suite: str
    components: str
    signed_by: str


def deb822(text: str) -> list[Source]:
    """The stanzas of a ``.sources`` file."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                found.append(Source(uri, suite, fields.get("components", "main"), fields.get("signed-by", "")))
    return found


def one_line(text: str) -> list[Source]:
    """The lines of a ``.list`` file."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line)
        if match:
            signed = re.search(r"signed-by=(\S+)", match[1] or "")
            found.append(Source(match[2], match[3], match[4].split("#")[0].strip(), signed[1] if signed else ""))
    return found


def exchanged(sources: list[Source], own: str, suite: str) -> list[str]:
    """Sources of ``suite``, one line each."""
    lines = []
    for source in sources:
        stem, _, tail = source.suite.partition("-")
        if stem != own or "main" not in source.components.split():
            continue
        if tail not in ("", "security") or (tail and suite in ROLLING):
            continue
        options = ["check-valid-until=no"] + ([f"signed-by={source.signed_by}"] if source.signed_by else [])
        lines.append(f"deb [{' '.join(options)}] {source.uri} {f'{suite}-{tail}' if tail else suite} main")
    return sorted(set(lines))


def machine_sources() -> list[Source]:
    """Everything the machine's own apt knows."""
    apt = Path("/etc/apt")
    found = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            found += deb822(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            found += one_line(path.read_text())
    return found


def own_suite() -> str:
    """The code name of the running release."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    return ""


def main() -> int:
    suite = sys.argv[1]
    base, _, tail = suite.partition("-")
    lines = exchanged(machine_sources(), own_suite(), base)
    if tail == "backports":
        lines += [line.replace(f" {base} ", f" {suite} ") for line in lines if f" {base} " in line]
    if not lines:
        print(
            f"sources: nothing in /etc/apt offers {own_suite() or 'this release'}, so nothing offers {suite}",
            file=sys.stderr,
        )
        return 3
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
