"""What can go wrong with a red team."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class RedTeamError(CaissonError):
    """Base of the family: our side broke, or the host does."""

    exit_code: ClassVar[int] = 3


class RegisterInvalid(RedTeamError):
    """The register of routes, or what a route wrote, breaks its own rules; or an option names nothing."""

    exit_code: ClassVar[int] = 2


class WorldRefused(RedTeamError):
    """The host refuses the namespaces or sockets the world outside is made of."""
