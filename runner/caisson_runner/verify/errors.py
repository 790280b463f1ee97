"""What can break on our side of a verification. It makes a run `infra`, never `fail`."""

from __future__ import annotations

from typing import ClassVar

from caisson_runner.errors import CaissonError


class VerifyError(CaissonError):
    """No result, through no fault of the agent."""

    exit_code: ClassVar[int] = 3


class ExaminerFailed(VerifyError):
    """The task author's examiner raised, timed out or answered what is no list of cases."""
