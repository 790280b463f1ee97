"""The runner's side of the keeper and the holders (`caisson_runner.boxes.holder`)."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from caisson_runner.boxes.errors import BoxGone
from caisson_runner.boxes.holder import wire

_SCRIPT = Path(__file__).with_name("holder") / "main.py"
PYTHON = (sys.executable, "-I", "-S", "-B", str(_SCRIPT))


class Keeper:
    """The process that forks holders. Its own session, so that Ctrl-C in a terminal reaches the runner alone."""

    def __init__(self, program: bytes, owner: int | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*PYTHON, "keep", str(theirs.fileno()), *([str(owner)] if owner is not None else [])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        self._socket = ours
        self._filter = os.memfd_create("filter", os.MFD_CLOEXEC)
        os.write(self._filter, program)
        os.lseek(self._filter, 0, os.SEEK_SET)
        wire.send(ours, {"op": "filter"}, (self._filter,))

    def fork(self, spec: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        """Make a holder: first descriptor its control socket, second (if any) the state to unpack."""
        try:
            wire.send(self._socket, {"op": "fork", **spec}, descriptors)
        except OSError as problem:
            raise BoxGone(
                f"the process that makes boxes has ended ({problem.strerror}); run the command again"
            ) from problem

    def close(self) -> None:
        """End the keeper. Holders do not depend on it."""
        self._socket.close()
        os.close(self._filter)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Holder:
    """The connection to one box's holder. Closing it ends the box."""

    def __init__(self, control: socket.socket, on_gone: Callable[[], None]) -> None:
        control.setblocking(False)
        self._socket = control
        self._on_gone = on_gone
        self._sending = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self.up: asyncio.Future[wire.Message] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._buffer = bytearray()
        loop.add_reader(control.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._finish()
            return
        self._buffer += data
        while len(self._buffer) >= wire.HEADER:
            size = wire.HEADER + int.from_bytes(self._buffer[: wire.HEADER], "little")
            if len(self._buffer) < size:
                return
            message = wire.decode(bytes(self._buffer[wire.HEADER : size]))
            del self._buffer[:size]
            if "gone" in message:
                self._on_gone()
            elif not self.up.done():
                self.up.set_result(message)

    def _finish(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if not self.up.done():
            self.up.set_result({"failed": "holder", "errno": 0, "detail": "it ended at once"})
        if not self.ended.done():
            self.ended.set_result(None)
        self._on_gone()

    async def ask(self, request: wire.Message, descriptors: Sequence[int] = ()) -> None:
        """Send one request. BoxGone when the holder has ended."""
        data = memoryview(wire.encode(request))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                while True:
                    try:
                        sent = self._socket.sendmsg([data], rights)
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                if sent < len(data):
                    await loop.sock_sendall(self._socket, data[sent:])
            except OSError as problem:
                raise BoxGone(f"the box has ended ({problem.strerror}); fork a new one") from problem

    async def close(self, timeout: float = 15.0) -> None:
        """Drop the box and wait until its processes are gone."""
        if not self.ended.done():
            try:
                await self.ask({"op": "drop"})
                await asyncio.wait_for(asyncio.shield(self.ended), timeout)
            except (BoxGone, TimeoutError):
                pass
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
