"""What a task's repository knows of its future: objects that the commit checked out at the start does not reach.

A benchmark's image is often a clone of the whole project, so the fix lies in it: on another branch, in a tag, in the
reflog, in an object nobody refers to any more. The untouched snapshot is asked once, in a room of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from caisson_runner.boxes.engine import BoxLimits, Command, Engine
from caisson_runner.boxes.errors import BoxError
from caisson_runner.boxes.store import Snapshot

MAX_OBJECTS = 20_000
_ASK = """
test -e .git && command -v git >/dev/null || exit 9
export GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
echo "D $(git rev-parse --absolute-git-dir)"
git rev-list --objects --no-object-names HEAD 2>/dev/null | sed 's/^/P /'
git cat-file --batch-all-objects --batch-check='A %(objectname) %(objecttype)' 2>/dev/null
git for-each-ref --no-merged HEAD --format='R %(refname)' 2>/dev/null
"""


@dataclass(frozen=True, slots=True)
class Future:
    """`commits` are whole ids, `paths` loose objects and references of the future as the box sees them.

    `refs` are names by which git can be asked for it: in a clone both objects and references are packed, and one pack
    holds past and future.
    """

    commits: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()


NONE = Future()
_known: dict[tuple[str, str], Future] = {}
"""By snapshot and workspace, once per process."""


def read(answer: str) -> Future:
    """The answer of the room's git as a Future. Pure."""
    folder, past = "", set()
    every: dict[str, str] = {}
    refs = []
    for line in answer.splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "D":
            folder = rest
        elif mark == "P":
            past.add(rest)
        elif mark == "A":
            name, _, kind = rest.partition(" ")
            every[name] = kind
        elif mark == "R":
            refs.append(rest)
    unseen = [name for name in every if name not in past][:MAX_OBJECTS]
    paths = [f"{folder}/objects/{name[:2]}/{name[2:]}" for name in unseen] + [f"{folder}/{ref}" for ref in refs]
    names = tuple(sorted({name for ref in refs for name in _names(ref)}))
    return Future(tuple(name for name in unseen if every[name] == "commit"), tuple(paths), names)


def _names(ref: str) -> list[str]:
    """Every name by which git knows ``refs/remotes/origin/x``: whole, without ``refs/``, without the kind."""
    parts = ref.split("/")
    names = ["/".join(parts[first:]) for first in range(3) if parts[first:]]
    return [*names, parts[2]] if parts[1:2] == ["remotes"] and parts[3:] == ["HEAD"] else names


async def future(engine: Engine, snapshot: Snapshot, workspace: str) -> Future:
    """What lies ahead of the start in this snapshot. A room that cannot tell (no git in it) knows of nothing."""
    key = (snapshot.id, workspace)
    if key not in _known:
        try:
            async with engine.fork(snapshot, limits=BoxLimits(wall_s=60.0)) as box:
                asked = Command(("/bin/sh", "-c", _ASK), cwd=workspace, wall_s=60.0)
                finished = await (await box.start(asked)).wait()
        except BoxError:
            return NONE
        _known[key] = read(finished.stdout.decode("utf-8", "replace")) if finished.ok else NONE
    return _known[key]
