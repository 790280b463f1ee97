"""Path patterns of rules. Pure.

`*` and `?` stay inside one name, `**` crosses folders (`**/x` also finds `/x`), `[0-9]` and `{a,b}` are as in a shell.
A variable such as `$rooms` stands for any of its paths; a `$visible` pattern is `fnmatch`'s, relative to the workspace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|\{[^{}]*\}|\$[a-z]+|.", re.S)


class BadPattern(ValueError):
    """The pattern uses a variable that there is not."""


def translate(pattern: str, variables: Mapping[str, str]) -> str:
    """One pattern as a regular expression's source; `variables` are such sources by name."""
    parts: list[str] = []
    for token in _TOKEN.findall(pattern):
        if token == "**/":  # noqa: S105 - a pattern
            parts.append("(?:.*/)?")
        elif token == "**":  # noqa: S105
            parts.append(".*")
        elif token == "*":  # noqa: S105
            parts.append("[^/]*")
        elif token == "?":  # noqa: S105
            parts.append("[^/]")
        elif token.startswith("["):
            parts.append(("[^" + token[2:]) if token.startswith("[!") else token)
        elif token.startswith("{"):
            inner = "|".join(translate(part, variables) for part in token[1:-1].split(","))
            parts.append(f"(?:{inner})")
        elif token.startswith("$") and len(token) > 1:
            if token[1:] not in variables:
                raise BadPattern(
                    f"no variable {token}; there are {', '.join('$' + name for name in sorted(variables))}"
                )
            parts.append(f"(?:{variables[token[1:]]})")
        else:
            parts.append(re.escape(token))
    return "".join(parts)


def compiled(patterns: Sequence[str], variables: Mapping[str, str]) -> re.Pattern[str] | None:
    """All patterns as one; None for none."""
    if not patterns:
        return None
    return re.compile("|".join(f"(?:{translate(pattern, variables)})" for pattern in patterns), re.S)


def any_of(paths: Sequence[str]) -> str:
    """Literal paths as the source of a variable; a source that matches nothing when there are none."""
    return "|".join(re.escape(path) for path in paths) or "(?!)"
