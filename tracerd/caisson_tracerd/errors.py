"""What can go wrong in tracerd. Each message is one line: what happened, to what, what to do next."""

from __future__ import annotations

from typing import Any, ClassVar

from caisson_runner.errors import CaissonError


class TracerdError(CaissonError):
    """Root of this part's family; our side or the host is at fault."""

    exit_code: ClassVar[int] = 3


class CgroupError(TracerdError):
    """A cgroup could not be made, changed or removed."""


class BpfError(TracerdError):
    """The kernel refused a map, program or pin."""


class LoadError(TracerdError):
    """The programs could not be compiled, loaded or pinned."""


class PinsError(TracerdError):
    """The pins are missing, damaged or of another version."""


class PinsOlder(PinsError):
    """The pins are of another build of the same layout: usable while boxes depend on them."""

    def __init__(self, message: str, manifest: dict[str, Any]) -> None:
        super().__init__(message)
        self.manifest = manifest


class SelfTestError(TracerdError):
    """The kernel's record of a known child is not what the child did."""


class ServeError(TracerdError):
    """The daemon cannot serve: its place is taken, or a socket cannot be made."""


class UsageError(TracerdError):
    """The caller asked for something that cannot be."""

    exit_code: ClassVar[int] = 2


class BoxExists(UsageError):
    """The caller has a box of this name."""


class BoxUnknown(UsageError):
    """The caller has no box of this name."""


class BoxState(UsageError):
    """The box is sealed, or cannot be sealed now."""


class NotYours(UsageError):
    """The process belongs to someone else."""


class TooMany(UsageError):
    """A bound on boxes is reached."""
