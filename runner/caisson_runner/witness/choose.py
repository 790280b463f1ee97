"""Which witness a run gets, and the sentence that says why."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from caisson_runner.witness.ebpf import EbpfWitness, ask, default_socket
from caisson_runner.witness.errors import WitnessError, WitnessUnavailable
from caisson_runner.witness.nothing import NoWitness
from caisson_runner.witness.seam import Witness
from caisson_runner.witness.strace import StraceWitness, command

NAMES = ("auto", "ebpf", "strace", "none")
LOSSLESS = "ebpf, lossless"
"""What `--lossless` asks for."""


def choose(name: str = "auto", socket: Path | None = None) -> Witness:
    """The witness called ``name``; with ``auto`` the best one to be had: ebpf, else strace, else none.

    ``socket`` is tracerd's, by default this user's (or ``CAISSON_TRACERD_SOCKET``). A witness that was asked for by
    name and cannot be had raises `WitnessUnavailable`; ``auto`` never raises. `LOSSLESS` is ebpf with boxes that stand
    still rather than outrun their record. Blocks for at most a few seconds.
    """
    path = socket or default_socket()
    if name == LOSSLESS:
        return EbpfWitness(path, ask(path), lossless=True)
    if name == "ebpf":
        return EbpfWitness(path, ask(path))
    if name == "strace":
        return StraceWitness("strace was asked for", strace=usable_strace())
    if name == "none":
        return NoWitness("no witness was asked for")
    if name != "auto":
        raise WitnessError(f"no witness is called {name!r}: choose one of {', '.join(NAMES)}")
    try:
        return EbpfWitness(path, ask(path))
    except WitnessUnavailable as error:
        no_daemon = str(error).partition(":")[0]
    try:
        return StraceWitness(f"{no_daemon}; strace works here", strace=usable_strace())
    except WitnessUnavailable as error:
        return NoWitness(f"{no_daemon}; {error}")


def usable_strace() -> str:
    """Path of a strace that traces here; tried once for real, because containers and policies may forbid ptrace."""
    strace = shutil.which("strace")
    if strace is None:
        raise WitnessUnavailable("strace is not installed: install the package strace")
    try:
        tried = subprocess.run(
            [*command(strace, Path(os.devnull)), "/bin/true"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WitnessUnavailable(f"{strace} does not run here: {type(error).__name__}") from None
    if tried.returncode:
        said = tried.stderr.decode("ascii", "replace").strip().splitlines()
        why = "".join(char if char.isprintable() else "?" for char in (said[-1] if said else "no reason given")[:200])
        raise WitnessUnavailable(f"{strace} cannot trace here ({why}): allow ptrace, or use --witness none")
    return strace
