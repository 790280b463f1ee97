"""Witnessing a container that somebody else started: tracerd records it where it is, from now on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from caisson_runner.witness.ebpf import _OPTIONS, SEAL_S, START_S, EbpfWatch, EbpfWitness, _drop, _patiently, owned_name
from caisson_runner.witness.scratch import pid_namespace, scratch, start_ticks

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Attached:
    """A container under witness. ``census`` is what ran, was open and was mapped when the record had begun."""

    watch: EbpfWatch
    container: str
    name: str
    cgroup: Path
    since_boottime_ns: int
    since_wall_ns: int
    census: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the container is gone: its cgroup goes with it."""
        return not self.cgroup.is_dir()

    async def until_ended(self) -> None:
        """Wait for the container's end."""
        while not self.ended:
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def attach(
    witness: EbpfWitness, container: str = "", *, cgroup: str = "", docker_host: str = ""
) -> AsyncIterator[Attached]:
    """Attach for as long as the context lasts. The container is not touched, at the end either.

    ``cgroup`` instead of a container, and ``docker_host``, are root's. WitnessError with the daemon's reason.
    """
    import grpc.aio
    from caisson_proto import tracerd_pb2, tracerd_pb2_grpc

    pid = os.getpid()
    slug = "".join(char if char.isalnum() and char.isascii() else "-" for char in container.lower())[:30].strip("-")
    name = owned_name(f"attach-{slug}" if slug else "attach")
    request = tracerd_pb2.AttachRequest(
        id=name,
        container=container,
        cgroup_path=cgroup,
        docker_host=docker_host,
        owner=tracerd_pb2.Owner(pid=pid, start_ticks=start_ticks(pid), pid_namespace=pid_namespace()),
    )
    async with grpc.aio.insecure_channel(f"unix:{witness.path}", options=_OPTIONS) as channel:
        stub = tracerd_pb2_grpc.TracerdStub(channel)
        with scratch() as folder:
            try:
                made = await _patiently("attach", lambda: stub.Attach(request, timeout=SEAL_S), START_S)
                watch = EbpfWatch(stub, tracerd_pb2.CreateBoxResponse(box=made.box), witness, folder)
                watch.attached = True
                yield Attached(
                    watch,
                    made.container_id,
                    made.container_name,
                    Path(made.box.cgroup_path),
                    made.since_boottime_ns,
                    made.since_wall_ns,
                    json.loads(made.census_json or "{}"),
                )
            finally:
                await _drop(stub, name)
