"""The values that findings are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from caisson_runner.verify.check import shown

INFO, WARN, VOID = "info", "warn", "void"
SEVERITIES: Final = (VOID, WARN, INFO)
"""The disqualifying one first."""
MAX_POINTERS: Final = 20  # events or paths one finding lists; the count is always whole
MAX_LABEL: Final = 80  # characters of one name in a finding


class Change(Protocol):
    """One path that differs from the snapshot, as the box engine reports it: no leading slash."""

    @property
    def path(self) -> bytes: ...
    @property
    def how(self) -> str: ...  # added, changed, removed
    @property
    def kind(self) -> str: ...  # file, dir, link, fifo


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` names it; `seqs` are records of the witness, `gate` events of the gate, `paths` of the state diff."""

    rule: str
    severity: str
    text: str
    seqs: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    count: int = 0
    gate: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "severity": self.severity,
            "text": self.text,
            "seqs": list(self.seqs),
            "paths": list(self.paths),
            "count": self.count,
            "gate": list(self.gate),
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing a rule can speak about: `fields` as its stream declares them, `path` what globs are compared with."""

    fields: dict[str, Any]
    seqs: tuple[int, ...] = ()
    path: str = ""
    label: str | bytes = ""
    gate: tuple[int, ...] = ()
    """Sequence numbers in the gate's journal."""

    @property
    def shown(self) -> str:
        """How it is named in a finding; made when it is needed, because most subjects never are."""
        if isinstance(self.label, bytes):
            return shown(self.label, MAX_LABEL)
        return shown((self.label or self.path).encode("utf-8", "backslashreplace"), MAX_LABEL)
