"""The runner's side of the gate: its process, its boxes, and what happens when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from caisson_runner.extras import install

from caisson_gate import wire
from caisson_gate.errors import GateError
from caisson_gate.rights import own_uid

START_S: Final = 60.0
"""Until the process is ready: a second here, on a busy machine more."""
ANSWER_S: Final = 60.0
STOP_S: Final = 15.0


class GateLost(GateError):
    """The gate process has ended while it was needed. Its boxes have had no way out since."""


class GateRefused(GateError):
    """The gate does not take what it was given: a policy, a credential, a recording."""

    exit_code: ClassVar[int] = 2


class GateMissing(GateError):
    """What the gate is made of is not installed."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How one box is served."""

    box: str
    run: str
    policy: bytes
    """TOML text."""
    source: str
    """Where the policy comes from, for messages."""
    folder: Path
    """Where the gate writes: ``gate/`` of the run's bundle; it must exist."""
    phase: str = "agent"
    record: bool = False
    replay: Path | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A policy that can be taken."""

    ports: tuple[int, ...]
    """TCP ports to listen on."""
    phases: tuple[str, ...]
    """In which there is a network."""
    warnings: tuple[str, ...]


@dataclass(slots=True)
class GateBox:
    """One box's way out, while it is open."""

    gate: GateProcess
    box: str
    folder: Path
    policy_sha256: str
    warnings: tuple[str, ...]
    closed: dict[str, Any] = field(default_factory=dict)
    """After `close`: the number of events, the digest of the last, and what was counted."""

    async def phase(self, phase: str) -> None:
        """From now on the rules of another phase count."""
        await self.gate.ask({"op": "phase", "box": self.box, "phase": phase})

    async def close(self) -> None:
        """No way out any more; everything is on disk. Idempotent. GateLost when the process ended before."""
        if not self.closed:
            try:
                self.closed = await self.gate.ask({"op": "close", "box": self.box})
            finally:
                await asyncio.to_thread(_take_back, self.folder)


class GateProcess:
    """An async context manager; leaving it ends the process. ``files`` and ``env`` go into every box."""

    command: tuple[str, ...] = (sys.executable, "-m", "caisson_gate.process")

    def __init__(self, folder: Path, *, run: str, resolve: Sequence[str] = (), upstream_ca: Path | None = None) -> None:
        """``folder`` is for the process's own files and is removed with it."""
        self._folder = folder
        self._options = {
            "folder": str(folder.absolute()),
            "run": run,
            "resolve": list(resolve),
            "upstream_ca": str(upstream_ca.absolute()) if upstream_ca is not None else None,
        }
        self.files: tuple[tuple[Path, str], ...] = ()
        """Source and place in the box of the trust material, for read-only binds."""
        self.env: dict[str, str] = {}
        self.placeholders: dict[bytes, dict[str, str]] = {}
        """By a policy that was checked: what its boxes get in place of the credentials it injects."""
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._numbers = 0

    @property
    def folder(self) -> Path:
        """For files that last as long as the process."""
        return self._folder

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def __aenter__(self) -> GateProcess:
        loop = asyncio.get_running_loop()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)
        self._ready: asyncio.Future[wire.Message] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when the process has ended, with one line about how."""
        ours, theirs = wire.pair()
        ours.setblocking(False)
        self._control = ours
        log = self._folder / "log"
        with theirs, log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*self.command, str(theirs.fileno()), json.dumps(self._options)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        loop.add_reader(ours.fileno(), self._readable)
        try:
            async with asyncio.timeout(START_S):
                said = await self._ready
        except BaseException as problem:
            await self._end(kill=True)
            if isinstance(problem, TimeoutError):
                raise GateError(f"the gate was not ready after {START_S:g} s; see: caisson-run doctor") from None
            raise
        if "failed" in said:
            detail = str(said["failed"])
            await self._end(kill=True)
            if "ModuleNotFoundError" in detail:
                raise GateMissing(f"the gate cannot start ({detail}); run: {install('gate')}")
            if said.get("code") == GateRefused.exit_code:
                raise GateRefused(detail)
            raise GateError(f"the gate cannot start: {detail}")
        self.files = tuple((Path(source), target) for source, target in said["files"])
        self.env = dict(said["env"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end(kill=False)

    async def _end(self, *, kill: bool) -> None:
        """The process is gone afterwards, and its folder with it."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control.fileno())
        self._control.close()
        if kill:
            self._process.kill()
        try:
            await asyncio.to_thread(self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        finally:
            if not self.lost.done():
                self.lost.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _readable(self) -> None:
        for received in wire.waiting(self._control):
            if received is None:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
                self._forget()
                return
            message, _ = received
            if "id" in message:
                future = self._waiting.pop(message["id"], None)
                if future is not None and not future.done():
                    future.set_result(message)
            elif not self._ready.done():
                self._ready.set_result(message)

    def _forget(self) -> None:
        """The other end is closed: the process is gone or going."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        how = f"the gate process has ended ({_ending(self._process.returncode)}{self._last_words()})"
        if not self._ready.done():
            self._ready.set_result({"failed": how})
        if not self.lost.done():
            self.lost.set_result(how)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(GateLost(f"{how}; its boxes had no way out from then on"))
        self._waiting.clear()

    def _last_words(self) -> str:
        try:
            lines = (self._folder / "log").read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1][:300]}" if lines else ""

    async def ask(self, request: wire.Message, descriptors: Sequence[int] = ()) -> wire.Message:
        """One request and its answer. GateLost when the process is gone, GateError when it refuses."""
        if self.lost.done():
            raise GateLost(f"{self.lost.result()}; its boxes had no way out from then on")
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            while True:
                try:
                    wire.send(self._control, {"id": number, **request}, tuple(descriptors))
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.005)
                except OSError:
                    break  # the end of the socket says how it ended
            while not (await asyncio.wait([future], timeout=ANSWER_S))[0]:
                if request["op"] == "ping" or not await self._alive():
                    raise GateLost(f"the gate process has not answered for {ANSWER_S:g} s ({request['op']})")
            answer = future.result()
        finally:
            self._waiting.pop(number, None)
        if "failed" in answer:
            raise (GateRefused if answer["code"] == GateRefused.exit_code else GateError)(str(answer["failed"]))
        return answer

    async def _alive(self) -> bool:
        """Whether it answers at all: closing a box with a large recording takes its time."""
        try:
            await self.ask({"op": "ping"})
        except GateLost:
            return False
        return True

    async def check(self, policy: bytes, source: str) -> list[int]:
        """The TCP ports a policy wants listened on. GateRefused when it cannot be taken."""
        return list((await self.checked(policy, source)).ports)

    async def checked(self, policy: bytes, source: str) -> Checked:
        """What a policy asks of whoever makes the box. GateRefused when it cannot be taken."""
        with _held(policy) as descriptor:
            answer = await self.ask({"op": "check", "source": source}, (descriptor,))
        self.placeholders[policy] = dict(answer["env"])
        return Checked(tuple(answer["ports"]), tuple(answer["phases"]), tuple(answer["warnings"]))

    async def open(self, opening: Opening, listeners: Sequence[tuple[dict[str, Any], int]]) -> GateBox:
        """Serve a box on these sockets, which stay the caller's to close. GateError when the policy is refused.

        The folder is the gate's until `GateBox.close`, or until the process is gone.
        """
        if (uid := own_uid()) is not None:
            try:
                os.chown(opening.folder, uid, uid)
            except OSError as problem:
                raise GateError(f"{opening.folder}: the gate cannot write there ({problem.strerror})") from None
        request = {
            "op": "open",
            "box": opening.box,
            "run": opening.run,
            "source": opening.source,
            "folder": str(opening.folder.absolute()),
            "phase": opening.phase,
            "record": opening.record,
            "replay": str(opening.replay.absolute()) if opening.replay is not None else None,
            "listeners": [about for about, _ in listeners],
        }
        with _held(opening.policy) as policy:
            answer = await self.ask(request, (policy, *(descriptor for _, descriptor in listeners)))
        return GateBox(self, opening.box, opening.folder, answer["policy_sha256"], tuple(answer["warnings"]))


@contextlib.contextmanager
def _held(text: bytes) -> Iterator[int]:
    """A descriptor to read the text from, whatever its size."""
    descriptor = os.memfd_create("policy", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _take_back(folder: Path) -> None:
    """What the gate wrote as another user belongs to ours from now on."""
    if own_uid() is None or not folder.is_dir():
        return
    uid, gid = os.geteuid(), os.getegid()
    for _, folders, files, here in os.fwalk(folder):
        for name in (".", *folders, *files):
            os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False)


def _ending(code: int | None) -> str:
    if code is None:
        return "its end of the socket is closed"
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with code {code}"
