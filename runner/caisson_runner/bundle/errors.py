"""What can be wrong with a bundle."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class BundleError(CaissonError):
    """Base of the family: the bundle that was named is not one, or cannot be made there."""

    exit_code: ClassVar[int] = 2


class BundleDamaged(BundleError):
    """Something is not what was signed. ``path`` is the first file that differs, is missing or is extra.

    ``at`` is the first byte of it that was changed, where that is known exactly.
    """

    def __init__(self, message: str, path: str, at: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.at = at


class NotTrusted(BundleError):
    """The bundle is whole, but not signed by the key that was asked for."""


class KeyFault(BundleError):
    """A key cannot be made, read or used."""

    exit_code: ClassVar[int] = 3


class NoKey(KeyFault):
    """What was named as a key is none."""

    exit_code: ClassVar[int] = 2


class BundleDiskFull(BundleError):
    """No room for the bundle where it was to be written."""

    exit_code: ClassVar[int] = 3
