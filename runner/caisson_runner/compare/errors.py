"""What can go wrong with a comparison."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class CompareError(CaissonError):
    """Base of the family: our side broke, or the host does."""

    exit_code: ClassVar[int] = 3


class RoutesInvalid(CompareError):
    """The register of routes, or what a route wrote, breaks its own rules."""

    exit_code: ClassVar[int] = 2
