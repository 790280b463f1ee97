"""Where one repository can be read: at its forge, by its API, as raw files and archives, by search, and on mirrors.

For `[[deny]] repository = "HOST/TEAM/PROJECT"`: the fix of a task mostly lies in the task's own repository.
"""

from __future__ import annotations

from caisson_gate.paths import Glob, MalformedPath
from caisson_gate.patterns import BadPattern, HostPattern

_PARTNERS = {
    "github.com": ("**.githubusercontent.com", "**.github.io", "**.githack.com", "**.jsdelivr.net", "**.statically.io"),
    "gitlab.com": ("**.gitlab.io", "**.githack.com", "**.jsdelivr.net", "**.statically.io"),
    "bitbucket.org": ("**.bitbucket.io", "**.githack.com", "**.jsdelivr.net", "**.statically.io"),
    "codeberg.org": ("**.codeberg.page",),
}
"""Hosts that serve the files of a forge's repositories under names of their own."""
_SEARCH = (
    "/search/**",
    "/**/search",
    "/graphql",
    "/**/graphql",
    "/**/graphql/**",
    "/api/v4/projects/**",
    "/trending/**",
)
"""Reading by search, by a query language or by number, where a path does not tell which repository is meant."""


def repository(text: str) -> tuple[tuple[HostPattern, ...], tuple[Glob, ...]]:
    """Hosts and paths of a deny rule. A ValueError's message completes "repository …"."""
    host, slash, path = text.removesuffix("/").removesuffix(".git").partition("/")
    if not slash or "/" not in path or "*" in text or "://" in text:
        raise BadPattern("must be HOST/TEAM/PROJECT, without a scheme")
    HostPattern.parse(host, wide=True)
    hosts = tuple(HostPattern.parse(name, wide=True) for name in (f"**.{host}", *_PARTNERS.get(host, ())))
    name = path.rpartition("/")[2]
    forms = [f"/**/{path}/**", f"/**/{path}.git/**", f"/**/{path}@*/**", f"/{name}/**"]
    try:
        return hosts, tuple(Glob.parse(form, folded=True) for form in (*forms, *_SEARCH))
    except MalformedPath as problem:
        raise BadPattern(str(problem)) from None
