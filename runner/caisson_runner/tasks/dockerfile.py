"""The subset of Dockerfile a box can be built from: FROM on a mapped base, WORKDIR, COPY, ENV and RUN.

Anything else is refused with its instruction and line, so that no task silently runs in another environment
than its author wrote.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from caisson_runner.boxes.engine import DEFAULT_ENV
from caisson_runner.tasks.errors import TaskMalformed, UnsupportedTask

SUPPORTED = ("FROM", "WORKDIR", "COPY", "ENV", "RUN")
HARMLESS = ("LABEL", "MAINTAINER", "EXPOSE", "STOPSIGNAL")  # change nothing in a box; ignored
_HEREDOC = re.compile(r"<<-?[\"']?[A-Za-z_]")


@dataclass(frozen=True, slots=True)
class Copied:
    """`source` (a file or directory below the build context) goes to `target`; a directory means its contents."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a Dockerfile asks for. All copies happen before all runs (refused when that would matter)."""

    image: str
    workdir: str
    env: Mapping[str, str]
    copies: tuple[Copied, ...]
    runs: tuple[str, ...]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Instructions with their first line number; comments dropped, continuations joined."""
    lines: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip().startswith("#") or not raw.strip():  # also in the middle of an instruction, as Docker does
            continue
        start = start or number
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1] + " "
            continue
        lines.append((start, (pending + raw).strip()))
        pending, start = "", 0
    if pending.strip():
        lines.append((start, pending.strip()))
    return lines


def _expand(text: str, env: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return env.get(name) or match[3] or DEFAULT_ENV.get(name, "")  # `ENV PATH=/opt/bin:$PATH` keeps the box's own

    return re.sub(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::-([^}]*))?\})", one, text)


def _env(rest: str, file: Path, line: int) -> dict[str, str]:
    try:
        parts = shlex.split(rest)
    except ValueError as failure:
        raise TaskMalformed(file, "ENV", str(failure), line) from None
    if parts and "=" in parts[0]:
        if bad := [part for part in parts if "=" not in part]:
            raise TaskMalformed(file, "ENV", f"{bad[0]!r} has no '='", line)
        return dict(part.split("=", 1) for part in parts)
    name, _, value = rest.partition(" ")
    if not value:
        raise TaskMalformed(file, "ENV", "needs a name and a value", line)
    return {name: value.strip()}


def _copy(rest: str, context: Path, workdir: str, file: Path, line: int) -> list[Copied]:
    if rest.startswith("--"):
        raise UnsupportedTask(f"{file}:{line}: COPY {rest.split()[0]}: COPY options are not supported")
    if _HEREDOC.search(rest):
        raise UnsupportedTask(f"{file}:{line}: COPY: here-documents are not supported")
    try:
        parts = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as failure:
        raise TaskMalformed(file, "COPY", str(failure), line) from None
    if not isinstance(parts, list) or len(parts) < 2 or not all(isinstance(part, str) for part in parts):
        raise TaskMalformed(file, "COPY", "needs a source and a destination", line)
    *sources, destination = parts
    into = destination.endswith("/") or destination in (".", "..") or len(sources) > 1
    target = PurePosixPath(workdir, destination)
    copies = []
    for pattern in sources:
        if PurePosixPath(pattern.lstrip("/")).is_absolute() or ".." in pattern.split("/"):
            raise TaskMalformed(file, "COPY", f"{pattern!r} leaves the build context", line)
        relative = pattern.lstrip("/") or "."
        wild = any(mark in relative for mark in "*?[")
        found = sorted(context.glob(relative)) if wild else [context / relative]
        found = [path for path in found if path.exists()]
        if not found:
            raise TaskMalformed(file, "COPY", f"{pattern!r} matches nothing in {context}", line)
        for path in found:
            if not path.resolve().is_relative_to(context.resolve()):
                raise TaskMalformed(file, "COPY", f"{pattern!r} leaves the build context through a link", line)
            below = path.is_dir() or not (into or wild)
            copies.append(Copied(path, str(target if below else target / path.name)))
    return copies


def _words(rest: str, file: Path, line: int) -> list[str]:
    try:
        words = json.loads(rest)
    except ValueError as failure:
        raise TaskMalformed(file, "RUN", f"is no JSON list: {failure}", line) from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise TaskMalformed(file, "RUN", "must be a JSON list of strings", line)
    return words


def parse_dockerfile(file: Path) -> Recipe:
    """Read one Dockerfile. Raises UnsupportedTask naming instruction and line, or TaskMalformed."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise TaskMalformed(file, "", f"cannot be read: {failure}") from None
    image, workdir = "", "/"
    env: dict[str, str] = {}
    copies: list[Copied] = []
    runs: list[str] = []
    for line, text_line in _logical_lines(text):
        word, _, rest = text_line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if not image and word != "FROM":
            raise UnsupportedTask(f"{file}:{line}: {word}: instructions before FROM are not supported")
        if word in HARMLESS:
            continue
        if word not in SUPPORTED:
            raise UnsupportedTask(f"{file}:{line}: {word}: not supported; a box is built from {', '.join(SUPPORTED)}")
        if not rest:
            raise TaskMalformed(file, word, "has no argument", line)
        if word == "FROM":
            if image:
                raise UnsupportedTask(f"{file}:{line}: FROM: multi-stage builds are not supported")
            parts = rest.split()
            if parts[0].startswith("--") or not (len(parts) == 1 or (len(parts) == 3 and parts[1].upper() == "AS")):
                raise UnsupportedTask(f"{file}:{line}: FROM {rest}: only FROM IMAGE [AS NAME] is supported")
            image = parts[0]
        elif word == "WORKDIR":
            workdir = str(PurePosixPath(workdir, _expand(rest, env)))
        elif word == "ENV":
            env.update({key: _expand(value, env) for key, value in _env(rest, file, line).items()})
        elif word == "COPY":
            if runs:
                raise UnsupportedTask(f"{file}:{line}: COPY after RUN: not supported; copy first, then run")
            copies += _copy(_expand(rest, env), file.parent, workdir, file, line)
        else:
            if rest.startswith("--") or _HEREDOC.search(rest.split()[0]):
                raise UnsupportedTask(f"{file}:{line}: RUN {rest.split()[0]}: RUN options are not supported")
            shell = shlex.join(_words(rest, file, line)) if rest.startswith("[") else rest
            exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in env.items())
            runs.append(f"mkdir -p {shlex.quote(workdir)} && cd {shlex.quote(workdir)} && {exports}{shell}")
    if not image:
        raise TaskMalformed(file, "FROM", "is missing")
    return Recipe(image, workdir, env, tuple(copies), tuple(runs))
