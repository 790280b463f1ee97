"""What is run on a kernel, in parts: each is one machine, so that a machine that dies costs one part.

A part is a set of tests chosen by their names. The scenario tests of the record carry their tier in their name and run
under both; the tests of the daemon run under the tier it chooses by itself.
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
    arguments: tuple[str, ...]
    """For a machine: only what tells something that the same test elsewhere does not, since minutes are dear there."""
    everything: tuple[str, ...] = ()
    """For this machine, where they are cheap."""


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
    "restart": (
        "at_any_moment_of_a_storm",
        "between_admit_and_start",
        "removed_by_force",
        "come_to_mean",
        "killed_runner",
    ),
    "storm": ("every_call_of_a_storm", "however_small_its_ring", "stays_frozen"),
}

PARTS = {
    part.name: part
    for part in (
        Part("trampoline", ("-k", "trampoline", OWN, *RECORD)),
        Part("tracepoint", ("-k", "tracepoint", *RECORD)),
        Part(
            "daemon",
            (
                "-k",
                " or ".join(word for words in DAEMON.values() for word in words),
                *(f"tests/tracerd/test_tracerd_{name}.py" for name in DAEMON),
            ),
            tuple(f"tests/tracerd/test_tracerd_{name}.py" for name in ("cgroup", *DAEMON, "security")),
        ),
    )
}
QUICK = Part("quick", ("-k", "trampoline", OWN, RECORD[0]))
"""One tier, one load: what a few minutes of emulation are best spent on."""


def storm(tree: Path, target: Path) -> Path | None:
    """The storm of the tests without need of a C library; None where there is no compiler. The guest has none."""
    source, compiler = tree / "tests/tracerd/storm.c", shutil.which("cc")
    if compiler is None or not source.exists():
        return None
    done = subprocess.run([compiler, "-O2", "-static", "-o", str(target), str(source)], capture_output=True)
    return None if done.returncode else target


def environment(out: str) -> dict[str, str]:
    """Where the tests leave what they saw, and where the tree's packages are."""
    return {
        "PYTHONPATH": "runner:tracerd:proto:gate",
        "CAISSON_SEEN": f"{out}/seen.json",
        "GRPC_VERBOSITY": "NONE",
    }
