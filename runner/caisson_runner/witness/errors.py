"""What can go wrong with a witness. Every one is the infrastructure's fault, never the agent's."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class WitnessError(CaissonError):
    """Base of the family."""

    exit_code: ClassVar[int] = 3


class WitnessUnavailable(WitnessError):
    """The witness that was asked for cannot be had on this host."""


class DaemonDown(WitnessUnavailable):
    """Nobody answers on tracerd's socket."""


class DaemonMismatch(WitnessUnavailable):
    """A tracerd answers, but it speaks an older or newer api."""


class WitnessLost(WitnessError):
    """The witness stopped watching in the middle of a run; what it saw until then proves nothing about the rest."""
