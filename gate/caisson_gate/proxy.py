"""The gate's HTTP proxy: one object for a gate process, one room for each of its boxes.

mitmproxy serves as a library of protocol layers here: no master, no addons, no options file, nothing global. So several
proxies can live in one process, and what passes a connection is what these modules say.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caisson_runner.extras import install

from caisson_gate.credentials import Credentials, credential_names
from caisson_gate.errors import GateError
from caisson_gate.proxy_room import Room

if TYPE_CHECKING:
    from mitmproxy.options import Options

    from caisson_gate.arrival import Arrival
    from caisson_gate.ca import Authority
    from caisson_gate.proxy_tls import TlsContexts
    from caisson_gate.served import Served


COLLECT: Final = (5000, 20, 20)
"""Thresholds of the garbage collector: a request makes and drops some hundred objects, few of them in circles."""


def _export(served: Served) -> None:
    """Other formats of the journal. They are copies: that one cannot be made is an event and loses nothing."""
    from caisson_gate.flowfile import write_flows
    from caisson_gate.har import write_har

    for name, write in (("flows.har", write_har), ("flows.mitm", write_flows)):
        try:
            write(served.folder)
        except Exception as problem:
            served.journal.append(
                "gate", what=f"{name} could not be made", detail=f"{type(problem).__name__}: {problem}"
            )


class Proxy:
    """Serves the HTTP connections of every box."""

    def __init__(
        self,
        boxes: Mapping[str, Served],
        authority: Authority,
        upstream_ca: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``environ`` holds the credentials that policies inject; the process's own by default."""
        self._boxes = boxes
        self._authority = authority
        self._upstream_ca = upstream_ca
        self._environ = os.environ if environ is None else environ
        self._rooms: dict[str, Room] = {}
        self._options: Options
        self._contexts: TlsContexts

    async def start(self) -> None:
        """Load mitmproxy and make ready. GateError when it is not installed."""
        try:
            from caisson_gate.proxy_options import make_options
            from caisson_gate.proxy_tls import TlsContexts
        except ImportError as missing:
            raise GateError(f"the gate needs {missing.name}: {install('gate')}") from missing
        self._options = make_options()
        gc.freeze()  # what is loaded now stays: no need to look through it again and again
        gc.set_threshold(*COLLECT)
        self._contexts = TlsContexts(self._authority, self._upstream_ca)

    async def opened(self, served: Served) -> None:
        """A box is about to get its gate. CredentialUnusable, ReplayUnusable: then it must not get one."""
        names = credential_names(served.policy)
        self._rooms[served.box] = Room(served, Credentials.named(names, self._environ))

    async def serve(self, arrival: Arrival, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is closed."""
        from caisson_gate.proxy_connection import GateConnection

        room = self._rooms.get(arrival.box)
        if room is None:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        room.tasks.add(task)
        try:
            await GateConnection(room, arrival, reader, writer, self._options, self._contexts).serve()
        finally:
            room.tasks.discard(task)

    async def closed(self, box: str) -> None:
        """A box is gone: end what it still had open, and write what is made from its journal."""
        room = self._rooms.pop(box, None)
        if room is None:
            return
        tasks = [task for task in room.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
        if room.served.record:
            await asyncio.to_thread(_export, room.served)

    async def stop(self) -> None:
        """Close every box. Idempotent."""
        for box in list(self._rooms):
            await self.closed(box)
