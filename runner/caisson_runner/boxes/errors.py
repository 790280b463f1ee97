"""What can go wrong with boxes and snapshots."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class BoxError(CaissonError):
    """Root of this part's family; our side or the host is at fault."""

    exit_code: ClassVar[int] = 3


class BoxStartFailed(BoxError):
    """A box could not be made: a mount, a namespace or bubblewrap was refused."""


class BoxGone(BoxError):
    """The box or its holder has ended; nothing can be asked of it any more."""


class UserNamespacesUnavailable(BoxError):
    """The host refuses unprivileged user namespaces."""


class DockerUnavailable(BoxError):
    """No Docker daemon answers, or it is one whose containers cannot be boxes here."""


class ToolMissing(BoxError):
    """A program or library the engine needs is not installed."""


class NetworkRefused(BoxError):
    """The kernel refused a step of making a box's network; the box stays without one."""


class DiskFull(BoxError):
    """The store's file system has no room."""


class StateTooLarge(BoxError):
    """A box's final state (sparse files counted in full) exceeds what a capture may hold, or does not fit a room."""


class StateInvalid(BoxError):
    """A captured state holds an entry no capture ever writes."""


class RequestError(BoxError):
    """The caller asked for something that cannot be."""

    exit_code: ClassVar[int] = 2


class SnapshotNotFound(RequestError):
    """No snapshot has this id or label."""


class SnapshotChanged(BoxError):
    """A snapshot's files differ from its manifest."""


class SnapshotInUse(RequestError):
    """A live box stands on this snapshot."""


class RootfsRefused(RequestError):
    """A root filesystem archive holds an entry that would leave its folder."""


class SnapshotBuildFailed(RequestError):
    """A run line of a snapshot did not end well."""


class BoxFileError(BoxError):
    """A file of a box could not be read or written; ``number`` is the errno."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number
