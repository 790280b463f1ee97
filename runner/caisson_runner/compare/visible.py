"""Whether a box can tell that it is watched: the answers of ``scenarios/routes/detect/probe.py`` with and without."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caisson_runner.boxes.engine import Bind, Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import Snapshot
from caisson_runner.compare import rig
from caisson_runner.compare.errors import CompareError
from caisson_runner.compare.eyes import Eye, NoEye

RATIOS: Final[Mapping[str, float]] = {"empty call": 3.0, "failing open": 4.0}
"""The quickest batch of a tight loop this many times slower shows; less may be the machine's noise."""
RATIO: Final = 10.0
"""For what takes milliseconds, a fork or a program: the scheduler alone makes threefold differences."""

EXPECTED: Final[Mapping[str, bool]] = {"ebpf": False, "strace": True, "polling": False}
"""Whether a witness of this kind shows."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """What one witness changes in the box's own view. ``answers`` are questions whose answers differ."""

    eye: str
    kind: str
    answers: tuple[str, ...]
    slower: tuple[tuple[str, float], ...]
    """(what, ratio of the quickest batches), of all timings."""

    @property
    def shows(self) -> bool:
        return bool(self.answers) or any(ratio > RATIOS.get(what, RATIO) for what, ratio in self.slower)

    @property
    def as_expected(self) -> bool:
        return self.shows == EXPECTED[self.kind]


@dataclass(frozen=True, slots=True)
class Answers:
    """One output of the probe: its answers in order, as text, and its samples of time."""

    answers: Mapping[str, str]
    timings: Mapping[str, tuple[float, ...]]


def read_answers(output: bytes) -> Answers:
    """The probe's lines. CompareError for anything else."""
    answers: dict[str, str] = {}
    timings: dict[str, tuple[float, ...]] = {}
    for line in output.splitlines():
        try:
            question, said = json.loads(line)
        except ValueError:
            raise CompareError(f"the probe wrote {line[:100]!r}") from None
        if question.startswith("timing "):
            timings[question.removeprefix("timing ")] = tuple(float(sample) for sample in said)
        else:
            answers[question] = json.dumps(said)
    if not answers or not timings:
        raise CompareError("the probe did not come to its end")
    return Answers(answers, timings)


def compared(eye: str, kind: str, without: Sequence[Answers], watched: Sequence[Answers]) -> Visibility:
    """What differs between runs without a witness and runs with it. Pure."""
    steady = {question for question in without[0].answers if len({one.answers.get(question) for one in without}) == 1}
    differs = [
        question
        for question in without[0].answers
        if question in steady and any(one.answers.get(question) != without[0].answers[question] for one in watched)
    ]
    slower = [(what, _quickest(what, watched) / max(1.0, _quickest(what, without))) for what in without[0].timings]
    return Visibility(eye, kind, tuple(differs), tuple(slower))


def _quickest(what: str, runs: Sequence[Answers]) -> float:
    """The quickest batch of all: noise only ever adds."""
    return min(min(run.timings[what]) for run in runs)


def probe_folder() -> Path:
    return rig.routes_folder().parent / "detect"


async def ask(engine: LocalEngine, snapshot: Snapshot, eye: Eye) -> Answers:
    """The probe's answers in a box under the eye."""
    run = await rig.work(
        engine, snapshot, Command((rig.PYTHON, "-I", "-S", f"{rig.PLACE}/probe.py"), env={"LC_ALL": "C.UTF-8"}), eye,
        (Bind(probe_folder(), rig.PLACE),),
    )  # fmt: skip
    if not run.finished.ok:
        raise CompareError(f"the probe ended with {run.finished.exit_code}: {run.finished.stderr[-300:]!r}")
    return read_answers(run.finished.stdout)


async def compare(engine: LocalEngine, snapshot: Snapshot, eyes: Sequence[Eye], rounds: int = 1) -> list[Visibility]:
    """The probe under every eye, and at least twice under none."""
    without = [await ask(engine, snapshot, NoEye()) for _ in range(rounds + 1)]
    found = []
    for eye in eyes:
        watched = [await ask(engine, snapshot, eye) for _ in range(rounds)]
        found.append(compared(eye.name, eye.kind, without, watched))
    return found
