"""The body of `caisson-run redteam routes`: one process an engine, their outcomes put together and judged."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from caisson_runner.interrupt import run_interruptible
from caisson_runner.redteam import report as reports
from caisson_runner.redteam.errors import RedTeamError, RegisterInvalid
from caisson_runner.redteam.outcome import Outcome
from caisson_runner.redteam.process import PLACES, PREFIX, Orders
from caisson_runner.redteam.register import ENGINES, NETWORKS, load_register, select
from caisson_runner.report.text import one_line
from caisson_runner.tasks.search import scenarios_root

PAGE: Final = Path("docs/egress.md")
PLAIN_UID: Final = 508950
"""As whom root tries the engine of plain users: a user nobody is."""


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options."""

    engine: str = "all"
    only: tuple[str, ...] = ()
    quick: bool = False
    witness: str = "auto"
    docker_host: str = ""
    task: str = ""
    bases: tuple[str, ...] = ()
    out: Path | None = None
    folder: Path | None = None
    """Of other registers than those that come with Caisson."""


def redteam_command(wanted: Wanted, as_json: bool, sarif: Path | None, write_docs: bool) -> int:
    """Run it and print it. 1 where something is not as it must be."""
    folder = wanted.folder or scenarios_root() / "routes"
    routes = select(load_register(folder), wanted.only, wanted.quick)
    if write_docs and not PAGE.parent.is_dir():
        raise RedTeamError(f"no folder {PAGE.parent} here: run --write-docs in the repository")
    out = wanted.out or Path("caisson-out") / "redteam"
    if wanted.out is not None and out.exists() and any(out.iterdir()):
        raise RegisterInvalid(f"{out} holds something already: name a new folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    _say(f"{len(routes)} routes; records go to {out}")
    outcomes, absent = run_interruptible(_all(wanted, out.resolve()))
    order = {route.name: number for number, route in enumerate(routes)}
    outcomes.sort(key=lambda one: (order.get(one.route, 0), ENGINES.index(one.engine), one.network != "none"))
    found = reports.Report(
        f"Linux {platform.release()} {platform.machine()}",
        tuple(outcomes), absent,
        {r.id: f"scenarios/routes/{r.script.parent.name}/{r.script.name}" for r in routes if not r.documented},
        {route.id: _described(route.script, route.documented) for route in routes},
    )  # fmt: skip
    if not outcomes:
        raise RedTeamError("no engine can be had here: " + "; ".join(f"{name}: {why}" for name, why in absent.items()))
    _write(found, out, as_json, sarif, write_docs)
    for text in reports.complaints(found):
        _say(f"wrong: {text}")
    return 0 if found.good else 1


def _write(found: reports.Report, out: Path, as_json: bool, sarif: Path | None, write_docs: bool) -> None:
    text = json.dumps(reports.as_json(found), indent=1)
    (out / "redteam.json").write_text(text + "\n", encoding="utf-8")
    if sarif is not None:
        sarif.write_text(json.dumps(reports.as_sarif(found), indent=1) + "\n", encoding="utf-8")
    if write_docs:
        PAGE.write_text(reports.as_markdown(found), encoding="utf-8")
        _say(f"{PAGE} is written")
    if as_json:
        sys.stdout.write(text + "\n")
        return
    from caisson_runner.report.terminal import grid

    grid("Routes", *reports.details(found))
    columns, rows = reports.summary(found)
    grid("Red team", columns, rows, [f"{engine} was not tried: {why}" for engine, why in found.absent.items()])


def _described(script: Path, otherwise: str) -> str:
    """The first sentence of a script's own words."""
    try:
        first = script.read_text(encoding="utf-8").split('"""')[1].split("\n")[0]
    except (OSError, IndexError):
        return otherwise
    return first.partition(": ")[2]


async def _all(wanted: Wanted, out: Path) -> tuple[list[Outcome], dict[str, str]]:
    """Every engine that was asked for, one after the other: each uses the machine to the full."""
    outcomes: list[Outcome] = []
    absent: dict[str, str] = {}
    root = os.geteuid() == 0
    engines = ENGINES if wanted.engine == "all" else (wanted.engine,)
    if wanted.engine == "local":
        engines = ("local-root",) if root else ("local-rootless",)
    networks = ("none",) if wanted.task else NETWORKS
    for engine in engines:
        orders = Orders(
            engine, str(out), wanted.only, wanted.quick, networks, wanted.witness, wanted.docker_host,
            task=wanted.task, bases=wanted.bases, folder=str(wanted.folder or ""),
        )  # fmt: skip
        if engine != "local-rootless" and not root:
            absent[engine] = "it needs root"
            continue
        try:
            here = await (
                _as_nobody(orders, out) if root and engine == "local-rootless" else _one(orders, (sys.executable,))
            )
        except EngineAbsent as problem:
            absent[engine] = str(problem)
            if wanted.engine not in ("all", "local"):
                raise RedTeamError(f"{engine} cannot be had here: {problem}") from None
            continue
        outcomes += here
    return outcomes, absent


class EngineAbsent(RedTeamError):
    """This host or user cannot have this engine."""


async def _as_nobody(orders: Orders, out: Path) -> list[Outcome]:
    """The engine of plain users, when root runs the red team: as a user of no name, with a store of its own."""
    if shutil.which("setpriv") is None:
        raise EngineAbsent("setpriv is not installed")
    # By way of env: setpriv's own exec may still be done with root's rights.
    as_nobody = ("setpriv", f"--reuid={PLAIN_UID}", f"--regid={PLAIN_UID}", "--clear-groups", "--", "env")
    python = await asyncio.to_thread(_interpreter, as_nobody)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=PLACES) as folder:
        home, records = Path(folder) / "home", Path(folder) / "out"
        for path in (Path(folder), home, records):
            path.mkdir(exist_ok=True)
            os.chown(path, PLAIN_UID, PLAIN_UID)
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": folder}
        environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "CAISSON_HOME": str(home), "HOME": str(home)}
        words = (*as_nobody, python, "-B")
        found = await _one(replace(orders, home=str(home), out=str(records)), words, environment)
        for made in records.iterdir():
            shutil.copytree(made, out / made.name)
    return found


def _interpreter(as_nobody: Sequence[str]) -> str:
    """A Python of this version that another user may run with our code. EngineAbsent without one."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [*as_nobody, python, "-B", "-c", "import sys, caisson_runner.redteam.process; print(sys.version_info[:2])"],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        if done.stdout.strip() == str(tuple(sys.version_info[:2])):
            return python
    raise EngineAbsent("no Python here that another user than root may run with our code; run this as that user")


async def _one(orders: Orders, words: Sequence[str], environment: Mapping[str, str] | None = None) -> list[Outcome]:
    """One engine's process, its lines read as they come."""
    process = await asyncio.create_subprocess_exec(
        *words, "-m", "caisson_runner.redteam.process", env=environment,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 22,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    found: list[Outcome] = []
    refused = ""
    try:
        process.stdin.write(orders.to_json().encode() + b"\n")
        await process.stdin.drain()
        while line := await process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            if "outcome" in said:
                found.append(Outcome.from_json(said["outcome"]))
                if len(found) % 50 == 0:
                    _say(f"{orders.engine}: {len(found)} done")
            elif "say" in said:
                _say(str(said["say"]))
            elif "absent" in said:
                refused = str(said["absent"])
            elif "failed" in said:
                failure = RedTeamError(f"{orders.engine}: {said['failed']}")
                failure.exit_code = int(said["code"])  # type: ignore[misc]  # as its own process would have ended
                raise failure
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
    if refused:
        raise EngineAbsent(refused)
    if code:
        raise RedTeamError(f"{orders.engine}: the process of its routes ended with {code}")
    return found
