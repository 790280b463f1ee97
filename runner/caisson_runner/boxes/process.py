"""A command in a box: its pipes, its clock, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import time
from collections.abc import Awaitable, Callable
from typing import Final

from caisson_runner.boxes.engine import Command, Finished, Outcome

_DRAIN_S: Final = 1.0
"""How long output is still read after the command ended, when others keep its pipes open."""
_IDLE_S: Final = 0.1
"""Silence that ends the drain early."""
_CHUNK: Final = 1 << 16


class LocalProcess:
    """See `engine.Process`. One task (the loop's callbacks) owns every descriptor."""

    def __init__(
        self,
        command: Command,
        wall_s: float,
        output_bytes: int,
        kill: Callable[[], Awaitable[None]],
        judge: Callable[[Outcome, int | None, int | None], tuple[Outcome, str]],
    ) -> None:
        self.pid = 0
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self._command = command
        self._wall_s = wall_s
        self._limit = output_bytes
        self._kill_box = kill
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self.waiting: asyncio.Future[None] = self._loop.create_future()
        """Done when the process waits at its gate, or will never."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._told = b""
        self._at_gate = False
        self._status: int | None = None
        self._refused: tuple[int, str] | None = None
        self._reason: Outcome | None = None
        self._collected = {"stdout": bytearray(), "stderr": bytearray()}
        self._open: dict[int, str] = {}
        self._owned: set[int] = set()
        self._size = 0
        self._truncated = False
        self._progress = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = self._stopped = time.monotonic()
        self._finished: Finished | None = None
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self) -> tuple[int, ...]:
        """Make the pipes; returns the box's ends: report, stdin, stdout, stderr, gate. The caller closes them."""
        theirs: list[int] = []
        try:
            report, report_in = os.pipe()
            theirs.append(report_in)
            self._watch(report, self._on_report)
            if self._command.stdin is None and not self._command.stdin_pipe:
                theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            else:
                reader, writer = os.pipe()
                theirs.append(reader)
                await self._feed(writer)
            for name in ("stdout", "stderr"):
                reader, writer = os.pipe()
                theirs.append(writer)
                if name == "stdout" and self._command.stdin_pipe:
                    await self._stream(reader)
                else:
                    self._open[reader] = name
                    self._watch(reader, self._on_output)
            gate, self._gate = os.pipe()
            self._owned.add(self._gate)
            theirs.append(gate)
        except BaseException:
            for descriptor in theirs:
                os.close(descriptor)
            self.close()
            raise
        return tuple(theirs)

    def _watch(self, descriptor: int, callback: Callable[[int], None]) -> None:
        os.set_blocking(descriptor, False)
        self._owned.add(descriptor)
        self._loop.add_reader(descriptor, callback, descriptor)

    async def _feed(self, writer: int) -> None:
        transport, protocol = await self._loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(writer, "wb", buffering=0)
        )
        self._transports.append(transport)
        stream = asyncio.StreamWriter(transport, protocol, None, self._loop)
        if self._command.stdin_pipe:
            self.stdin = stream
        if self._command.stdin is not None:
            stream.write(self._command.stdin)
            if not self._command.stdin_pipe:
                stream.close()

    async def _stream(self, reader: int) -> None:
        self.stdout = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stdout or asyncio.StreamReader()),
            os.fdopen(reader, "rb", buffering=0),
        )
        self._transports.append(transport)

    def _on_report(self, descriptor: int) -> None:
        data = self._read(descriptor)
        if data is None:
            return
        self._told += data
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"p":
                self.pid = int(rest)
            elif word == b"r":
                self._at_gate = True
            elif word == b"e":
                code, _, text = rest.partition(b" ")
                self._refused = int(code), text.decode("utf-8", "replace")
            elif word == b"x":
                self._status = int(rest)
        if (self.pid and self._at_gate) or not data:
            self._settle(self.waiting)
        if self._status is not None or not data:
            self._stopped = time.monotonic()
            self._forget(descriptor)
            self._settle(self.waiting)
            self._settle(self._ended)

    @staticmethod
    def _settle(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    def _read(self, descriptor: int) -> bytes | None:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _on_output(self, descriptor: int) -> None:
        data = self._read(descriptor)
        if data is None:
            return
        self._progress.set()
        if not data:
            self._open.pop(descriptor, None)
            self._forget(descriptor)
            return
        room = self._limit - self._size if self._limit else len(data)
        self._collected[self._open[descriptor]] += data[:room]
        self._size += min(room, len(data))
        if room < len(data):
            self._truncated = True
            for other in list(self._open):  # nobody reads on; writers block until they are killed
                self._loop.remove_reader(other)
            self._stop(Outcome.OUTPUT_LIMIT)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._owned:
            self._owned.discard(descriptor)
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def open_gate(self) -> None:
        """Let the waiting process exec, and start its clock."""
        self._started = time.monotonic()
        if self._wall_s:
            self._timer = self._loop.call_later(self._wall_s, self._stop, Outcome.TIMEOUT)
        try:
            os.write(self._gate, b"g")
        except BrokenPipeError:
            pass  # it died while it waited; the report says so
        self._forget(self._gate)

    async def abandon(self) -> None:
        """Close the gate for good: the waiting process ends without having run anything."""
        self._reason = Outcome.KILLED
        self._forget(self._gate)
        await asyncio.wait([asyncio.ensure_future(asyncio.shield(self._ended))], timeout=5)

    @property
    def refusal(self) -> tuple[int, str] | None:
        """(code, text) when the process could not come to its gate or could not exec."""
        return self._refused

    def condemn(self, reason: Outcome) -> None:
        """The box is about to end all its processes for this reason."""
        if self._reason is None and not self._ended.done():
            self._reason = reason

    async def gone(self) -> None:
        """Wait until the command has ended and no kill is under way."""
        await asyncio.shield(self._ended)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _stop(self, reason: Outcome) -> None:
        """End the box's processes for this reason (the first one stays)."""
        if self._reason is None and not self._ended.done():
            self._reason = reason
            task = self._loop.create_task(self._run_kill())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_kill(self) -> None:
        await self._kill_box()

    def stop(self, reason: Outcome) -> None:
        """Called by the box: a limit without a controller was passed, or the box is being killed."""
        self._stop(reason)

    async def kill(self) -> None:
        """See `engine.Process`."""
        self._stop(Outcome.KILLED)
        await self.gone()

    def signal(self, number: int) -> None:
        """See `engine.Process`. The holder's child waits for the process, so the pid cannot be another's before."""
        if not self._ended.done():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    async def wait(self) -> Finished:
        """See `engine.Process`. Safe to cancel and to call again."""
        await self.gone()  # a kill still under way must not meet the next command
        if self._finished is None:
            if self._timer:
                self._timer.cancel()
            await self._drain()
            if self._finished is None:
                self._finished = self._conclude()
        return self._finished

    async def _drain(self) -> None:
        """Read what is in the pipes. A process left behind may keep them open for ever: stop at silence."""
        deadline = self._loop.time() + _DRAIN_S
        while self._open and not self._truncated and self._loop.time() < deadline:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), _IDLE_S)
            except TimeoutError:
                break
        for descriptor in self._open:
            self._loop.remove_reader(descriptor)

    def _conclude(self) -> Finished:
        code = number = None
        detail = ""
        if self._refused is not None:
            code, detail = self._refused
        elif self._status is not None and os.WIFEXITED(self._status):
            code = os.WEXITSTATUS(self._status)
        elif self._status is not None:
            number = os.WTERMSIG(self._status)
        if self._reason is not None:
            outcome = self._reason
        elif code is not None:
            outcome = Outcome.EXITED
        else:
            outcome = Outcome.SIGNALED if number is not None else Outcome.LOST
        outcome, more = self._judge(outcome, code, number)
        detail = detail or more or self._describe(outcome, number)
        return Finished(
            outcome,
            code,
            number,
            bytes(self._collected["stdout"]),
            bytes(self._collected["stderr"]),
            self._truncated,
            self._stopped - self._started,
            detail,
        )

    def _describe(self, outcome: Outcome, number: int | None) -> str:
        if outcome is Outcome.TIMEOUT:
            return f"not finished after {self._wall_s:g} s; every process of the box was killed"
        if outcome is Outcome.OUTPUT_LIMIT:
            return f"more than {self._limit} bytes of output; every process of the box was killed"
        if outcome is Outcome.SIGNALED and number is not None:
            return f"ended by {signals.Signals(number).name if number in set(signals.Signals) else number}"
        return "the process that held the box has ended" if outcome is Outcome.LOST else ""

    def close(self) -> None:
        """Let go of every descriptor; called when the box is dropped."""
        if self._timer:
            self._timer.cancel()
        for descriptor in list(self._owned):
            self._forget(descriptor)
        self._open.clear()
        for transport in self._transports:
            transport.close()
        self._settle(self.waiting)
        self._settle(self._ended)
