"""What is run on a kernel, in parts: each is one machine, so that a machine that dies costs one part.

The scenario tests of the record carry their tier in their name and run under both; the tests of the daemon run under
the tier that it chooses by itself.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

RECORD = tuple(f"tests/tracerd/test_tracerd_record{name}.py" for name in ("", "_kinds", "_uring", "_rare"))
OWN = "tests/tracerd/test_tracerd_trampoline.py"


@dataclass(frozen=True)
class Part:
    """Tests that share a machine, as arguments of pytest."""

    name: str
    chosen: tuple[str, ...]
    """In a machine only what tells something that the same test elsewhere does not: minutes are dear there."""
    files: tuple[str, ...]
    tier: str = ""
    """Of the daemon, for tests that leave it to the daemon: so one load does for them and for those of that tier."""

    @property
    def arguments(self) -> list[str]:
        return [*self.chosen, *self.files]


DAEMON = {
    "daemon": (
        "the_law_of_conservation",
        "keeps_up_with_a_busy_box",
        "neighbour_loses_nothing",
        "a_follower_sees",
        "a_running_box_can_be_sealed",
        "the_daemon_says",
        "limits_reach",
        "socket_of_another_user",
        "a_foreign_process",
        "a_plain_user_is_witnessed",
        "doctor_and_status",
    ),
    "storm": ("every_call_of_a_storm", "however_small_its_ring", "stays_frozen"),
}
RESTART = (
    "at_any_moment_of_a_storm",
    "between_admit_and_start",
    "removed_by_force",
    "come_to_mean",
    "killed_runner",
    "compiled_once",
)


def files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/tracerd/test_tracerd_{name}.py" for name in names)


PARTS = {
    part.name: part
    for part in (
        Part(
            "trampoline",
            ("-k", " or ".join(("trampoline", *(word for words in DAEMON.values() for word in words)))),
            (OWN, *RECORD, *files(*DAEMON)),
            "trampoline",
        ),
        Part("tracepoint", ("-k", "tracepoint"), RECORD),
        Part("restart", ("-k", " or ".join(RESTART)), files("restart")),
        Part("all", (), (OWN, *RECORD, *files("cgroup", *DAEMON, "restart", "security"))),
    )
}
USUAL = ("trampoline", "tracepoint", "restart")
QUICK = Part("quick", ("-k", "trampoline"), (OWN, RECORD[0]), "trampoline")
"""One tier, one load: what a few minutes of emulation are best spent on."""


def storm(tree: Path, target: Path) -> Path | None:
    """The storm of the tests without need of a C library; None where there is no compiler. The guest has none."""
    source, compiler = tree / "tests/tracerd/storm.c", shutil.which("cc")
    if compiler is None or not source.exists():
        return None
    done = subprocess.run([compiler, "-O2", "-static", "-o", str(target), str(source)], capture_output=True)
    return None if done.returncode else target


def environment(part: Part, out: str) -> dict[str, str]:
    """Where the tests leave what they saw, and where the tree's packages are."""
    tier = {"CAISSON_TEST_TIER": part.tier} if part.tier else {}
    return {
        **tier,
        "PYTHONPATH": "runner:tracerd:proto:gate",
        "CAISSON_SEEN": f"{out}/seen.json",
        "GRPC_VERBOSITY": "NONE",
    }
