"""Every socket of one box, served: connections, questions, packets. Closed together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caisson_gate.arrival import plain_address
from caisson_gate.front import MOST, Front, Server
from caisson_gate.owners import Owners
from caisson_gate.packets import Recorder
from caisson_gate.questions import Datagrams, Questions, stream

if TYPE_CHECKING:
    from caisson_gate.served import Served

Made = tuple[dict[str, Any], int]
"""What a socket is (as `caisson_runner.boxes.holder.network` says it), and its descriptor, which is taken over."""


class Listeners:
    """Use `start`; from then on the box has its way out, until `close`."""

    def __init__(self, served: Served, proxy: Server, made: Sequence[Made]) -> None:
        self._served = served
        self._made = [(about, socket.socket(fileno=descriptor)) for about, descriptor in made]
        self._proxy = proxy
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._questions = Questions(served)
        self._datagrams: list[Datagrams] = []
        self._recorders: list[Recorder] = []
        self._owners: Owners | None = None
        self._front = Front(served, proxy, None)

    async def start(self) -> None:
        """Listen. The recorder first."""
        ports = [about["port"] for about, _ in self._made if about["what"] == "tcp"]
        for about, sock in self._made:
            if about["what"] == "packets":
                self._recorders.append(Recorder(sock, self._served, ports))
            elif about["what"] == "diag":
                self._owners = Owners(sock)
            elif about["what"] == "dns":
                self._datagrams.append(Datagrams(sock, self._questions))
        self._front = Front(self._served, self._proxy, self._owners)
        for about, sock in self._made:
            if about["what"] == "tcp":
                serve = self._ask if about["port"] == 53 else self._front.serve
                self._servers.append(await asyncio.start_server(self._tracked(serve), sock=sock))

    def _tracked(self, serve: Any) -> Any:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await serve(reader, writer)
            finally:
                self._connections.discard(task)

        return one

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MOST:
                return
            address, port = writer.get_extra_info("sockname")[:2]
            src_port = writer.get_extra_info("peername")[1]
            await stream(self._questions, reader, writer, (plain_address(address), port), src_port)
        finally:
            writer.close()

    def _close_all(self) -> None:
        """Also what was never served, when the start failed. In a thread: the kernel lets the closer of a packet
        socket wait until no processor looks at it any more, and other boxes are being served."""
        for _, sock in self._made:
            sock.close()

    async def close(self) -> dict[str, Any]:
        """End every connection and every socket; what was counted."""
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=5)
        for datagrams in self._datagrams:
            datagrams.close()
        packets = [recorder.close() for recorder in self._recorders]
        await asyncio.to_thread(self._close_all)
        return {
            "connections": self._front.total,
            "turned_away": self._front.turned_away,
            "dns": self._questions.close(),
            "packets": packets[0] if packets else None,
        }
