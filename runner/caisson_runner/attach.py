"""`caisson-run attach`: a bundle about a container that somebody else started, from the moment it was attached on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from caisson_runner.bundle import COVERAGE, RUN, BundleWriter, escape
from caisson_runner.witness.attach import Attached, attach
from caisson_runner.witness.ebpf import EbpfWitness, ask, default_socket

SCHEMA: Final = "caisson.attach/v1"
ATTACHED: Final = "attach.json"
BEFORE: Final = "What the container did before it was attached is not recorded; attach.json lists what was there then."
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def record(
    out: Path, container: str, *, cgroup: str = "", docker_host: str = "", seconds: float | None = None
) -> dict[str, Any]:
    """Witness until the container ends, `seconds` have passed, or a signal says stop; then write the bundle.

    Returns what `attach.json` says. WitnessError when nothing could be attached; then there is no bundle.
    """
    path = default_socket()
    witness = EbpfWitness(path, await asyncio.to_thread(ask, path))
    with BundleWriter(out) as bundle:
        begun = time.monotonic()
        async with attach(witness, container, cgroup=cgroup, docker_host=docker_host) as attached:
            ended = await _wait(attached, seconds)
            evidence = await attached.watch.seal()
            until = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            bundle.add_events(evidence.events_path)
        document = describe(attached, until, ended)
        wall_s = round(time.monotonic() - begun, 4)
        bundle.add_json(ATTACHED, document)
        limits = [*evidence.coverage["limits"], BEFORE]
        bundle.add_json(
            COVERAGE, evidence.coverage | {"limits": limits, "since": document["since"], "until": document["until"]}
        )
        bundle.add_json(
            RUN,
            {
                "schema": SCHEMA,
                "id": out.name,
                "container": document["container"],
                "witness": {"name": witness.name, "reason": witness.reason},
                "started": document["since"]["wall"],
                "wall_s": wall_s,
            },
        )
    return document


async def _wait(attached: Attached, seconds: float | None) -> str:
    """Why it is over: "container ended", "time" or "stopped"."""
    with _stopping() as stop:
        ways = {
            asyncio.create_task(attached.until_ended()): "container ended",
            asyncio.create_task(stop.wait()): "stopped",
        }
        try:
            done, _ = await asyncio.wait(ways, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
        return next((ways[task] for task in ways if task in done), "time")


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """Here Ctrl-C is how one ends: it stops the watching, and the bundle is written."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def describe(attached: Attached, until_ns: int, ended: str) -> dict[str, Any]:
    """What a reader must know about such a record: from when on it is, and what was there before."""
    offset = attached.since_wall_ns - attached.since_boottime_ns
    return {
        "schema": SCHEMA,
        "container": {"id": attached.container, "name": attached.name},
        "cgroup": str(attached.cgroup),
        "since": _moment(attached.since_boottime_ns, offset),
        "until": _moment(until_ns, offset),
        "ended": ended,
        "already": _escaped(attached.census),
    }


def _moment(boottime_ns: int, offset_ns: int) -> dict[str, Any]:
    wall = datetime.fromtimestamp((boottime_ns + offset_ns) / 1e9, UTC)
    return {"boottime_ns": boottime_ns, "wall": wall.isoformat(timespec="milliseconds")}


def _escaped(value: Any) -> Any:
    """Names of the container in the bundle's reversible escape."""
    if isinstance(value, str):
        return escape(os.fsencode(value))
    if isinstance(value, Mapping):
        return {str(key): _escaped(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    return value
