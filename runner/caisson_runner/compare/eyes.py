"""The witnesses of the comparison, each as a context around one box: ``async with eye.watch(…) as view``.

``strace`` here is strace as a person would use it, asked for every call it can show of our classes; it is compared at
its best. Its lines are matched as text, so what it prints is what counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from caisson_proto.record import RecordError

from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Admit
from caisson_runner.compare import sights
from caisson_runner.compare.pollers import Poller, members_of
from caisson_runner.compare.sights import Sight
from caisson_runner.witness import Limits, Witness
from caisson_runner.witness.choose import usable_strace
from caisson_runner.witness.ebpf import EbpfWitness, ask, default_socket
from caisson_runner.witness.scratch import scratch


def _nothing(_box: LocalBox) -> None:
    return


async def _nothing_seen() -> Sequence[Sight]:
    return ()


@dataclass(slots=True)
class View:
    """One box under one eye."""

    cgroup: Path | None = None
    """The box's, when the witness makes it."""
    wrap: tuple[str, ...] = ()
    admit: Admit | None = None
    begin: Callable[[LocalBox], None] = _nothing
    """To be called when the box stands, before anything runs in it."""
    seen: Callable[[], Awaitable[Sequence[Sight]]] = _nothing_seen
    """What was seen; to be called when the box's processes are dead."""
    note: str = ""
    """A remark on this run: records lost, time a scan took."""


class Eye(Protocol):
    """``kind`` is the word expectations are declared for."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def watch(self, box_id: str, limits: Limits) -> AbstractAsyncContextManager[View]: ...


class NoEye:
    """Nobody looks: for the time things take."""

    name = kind = "none"

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits) -> AsyncIterator[View]:
        yield View()


class WitnessEye:
    """One of the product's own witnesses, by its records."""

    def __init__(self, witness: Witness, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self._witness = witness

    def as_in_a_run(self) -> WitnessEye:
        """The same with what runs ask for by default: no looks."""
        if isinstance(self._witness, EbpfWitness):
            one = self._witness
            return WitnessEye(EbpfWitness(one.path, one.info, one.reason), self.name, self.kind)
        return self

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits) -> AsyncIterator[View]:
        async with self._witness.watch(box_id, limits) as watch:

            async def seen() -> Sequence[Sight]:
                evidence = await watch.seal()
                view.note = "" if evidence.detail.complete else evidence.detail.reason
                try:
                    return sights.of_records(evidence.records())
                except RecordError as problem:
                    view.note = f"the record is damaged: {problem}"
                    return ()

            view = View(watch.cgroup, watch.wrap, watch.admit, seen=seen)
            yield view


def ebpf_eye(socket: Path | None) -> WitnessEye:
    """The witness of the tracerd on this socket, asked for everything. WitnessUnavailable without one."""
    path = socket or default_socket()
    info = ask(path)
    tier = info.tier if info.tier.isalnum() else "of an unknown tier"
    return WitnessEye(EbpfWitness(path, info, looks=True), f"ebpf {tier}", "ebpf")


class StraceEye:
    """strace itself."""

    name = kind = "strace"

    def __init__(self) -> None:
        self._strace = usable_strace()

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits) -> AsyncIterator[View]:
        with scratch() as folder:
            output = folder / "strace.txt"

            def read() -> Sequence[Sight]:
                if not output.exists():  # it was never started
                    return ()
                with output.open("rb") as file:
                    return list(sights.of_strace(file))

            async def seen() -> Sequence[Sight]:
                return await asyncio.to_thread(read)

            wrap = (
                self._strace, "-f", "--seccomp-bpf", "-yy", "-v", "-s", "131072", "--quiet=attach",
                "--decode-pids=pidns", "--absolute-timestamps=format:unix,precision:ns",
                "-e", "trace=" + ",".join(f"?{name}" for name in sights.STRACE_CALLS), "-o", str(output), "--",
            )  # fmt: skip
            yield View(wrap=wrap, seen=seen)


class PollEye:
    """A scan of /proc every so many milliseconds."""

    kind = "polling"

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.name = f"poll {interval_ms} ms"

    @asynccontextmanager
    async def watch(self, box_id: str, limits: Limits) -> AsyncIterator[View]:
        pollers: list[Poller] = []

        def begin(box: LocalBox) -> None:
            cgroup = box.cgroup.path if box.cgroup is not None else None
            pollers.append(Poller(members_of(box.init_pid, cgroup), self.interval_ms / 1000))
            pollers[-1].start()

        async def seen() -> Sequence[Sight]:
            if not pollers:
                return ()
            found = await asyncio.to_thread(pollers[-1].stop)
            view.note = f"{found.pass_ms:.1f} ms a scan"
            return list(sights.of_polls(found))

        view = View(begin=begin, seen=seen)
        try:
            yield view
        finally:
            for one in pollers:
                await asyncio.to_thread(one.stop)
