"""One request, one answer, over the pipes of a process in a room: bounded lines, the host's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from caisson_runner.boxes.engine import Finished, Process
from caisson_runner.verify import canon
from caisson_runner.verify.check import shown


class PipeBroken(Exception):
    """The other side ended, fell silent, or wrote what is no line of the protocol. The message is the reason."""


class Pipe:
    """The runner's end. After any PipeBroken nothing more is read from it."""

    def __init__(self, process: Process, limit: int = canon.MAX_MESSAGE) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self.limit = process, limit
        self._in, self._out = process.stdin, process.stdout
        self._buffer = bytearray()
        self.broken: str | None = None

    def _break(self, reason: str) -> PipeBroken:
        self.broken = self.broken or reason
        return PipeBroken(reason)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write one message. A dead reader shows itself at the next `receive`."""
        try:
            self._in.write(canon.dumps(dict(message)) + b"\n")
            await self._in.drain()
        except (ConnectionError, OSError):
            pass

    async def receive(self, timeout: float) -> dict[str, Any]:
        """The next message, a JSON object. Raises PipeBroken."""
        if self.broken:
            raise PipeBroken(self.broken)
        try:
            async with asyncio.timeout(timeout):
                line = await self._line()
        except TimeoutError:
            raise self._break(f"no answer within {timeout:g} s") from None
        try:
            message = canon.loads(line)
        except canon.NotCanonical as failure:
            raise self._break(f"an answer that is none ({failure}): {shown(line, 80)}") from None
        if not isinstance(message, dict):
            raise self._break(f"an answer that is no object: {shown(line, 80)}")
        return message

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > self.limit:
                raise self._break(f"an answer longer than {self.limit} bytes")
            chunk = await self._out.read(1 << 16)
            if not chunk:
                raise self._break(await self._death())
            self._buffer += chunk
        if end > self.limit:
            raise self._break(f"an answer longer than {self.limit} bytes")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _death(self) -> str:
        try:
            async with asyncio.timeout(2.0):
                finished = await self.process.wait()
        except TimeoutError:
            return "it closed its pipe"
        return f"it {ended(finished)}"

    def close(self) -> None:
        """No more requests: the other side reads the end of its input."""
        self._in.close()


def ended(finished: Finished) -> str:
    """How a command ended, in words."""
    how = {"exited": f"exited with {finished.exit_code}", "signaled": f"was killed by signal {finished.signal}"}
    text = how.get(finished.outcome.value, f"ended ({finished.outcome.value})")
    last = finished.stderr.strip().splitlines()[-1:] if finished.exit_code != 0 else []
    return f"{text}: {shown(last[0], 160)}" if last else text
