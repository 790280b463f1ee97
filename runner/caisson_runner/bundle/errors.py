"""What can be wrong with a bundle."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class BundleError(CaissonError):
    """Base of the family: the bundle that was named is not one, or cannot be made there."""

    exit_code: ClassVar[int] = 2


class BundleDamaged(BundleError):
    """Something is not what the manifest says. ``path`` is the first file that differs, is missing or is extra."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class BundleDiskFull(BundleError):
    """No room for the bundle where it was to be written."""

    exit_code: ClassVar[int] = 3
