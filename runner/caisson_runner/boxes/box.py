"""One fork of the local engine."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import secrets
import signal
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caisson_runner.boxes import capture as captures
from caisson_runner.boxes import census, owner
from caisson_runner.boxes.engine import (
    DEFAULT_ENV,
    Admit,
    Bind,
    BoxLimits,
    Capture,
    Change,
    Command,
    Network,
    Outcome,
)
from caisson_runner.boxes.errors import (
    BoxFileError,
    BoxGone,
    BoxStartFailed,
    DiskFull,
    RequestError,
    StateInvalid,
    StateTooLarge,
)
from caisson_runner.boxes.holder.state import PROBLEMS, Entry
from caisson_runner.boxes.holder.tree import remove
from caisson_runner.boxes.keeper import PYTHON, Holder
from caisson_runner.boxes.process import LocalProcess
from caisson_runner.boxes.store import Snapshot, Store

if TYPE_CHECKING:
    from caisson_tracerd.cgroup import Cgroup

_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_WATCH_S: Final = 0.2
_PARENT: Final = "caisson/own"
"""As deep as the cgroups tracerd makes: from inside, the path to the init's cgroup (/../../..) then says nothing."""


class LocalBox:
    """See `engine.Box`. Made by `LocalEngine.fork` only."""

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        box_id: str | None,
        limits: BoxLimits,
        binds: tuple[Bind, ...],
        network: Network = "none",
    ) -> None:
        self.id = box_id or f"box-{secrets.token_hex(6)}"
        if not _ID.fullmatch(self.id):
            raise RequestError(f"box id {self.id!r}: use 1 to 64 of a-z, 0-9 and -")
        self.snapshot = snapshot
        self.limits = limits
        self.binds = binds
        self.network: Network = network
        self.folder = store.home / "boxes" / self.id
        self.init_pid = 0
        self.cgroup: Cgroup | None = None
        self.holder: Holder | None = None
        self._store = store
        self._owner = store.owner
        """The host uid of the box's root; None when that is this user."""
        self._ours = False
        self._frozen = False
        self._gone = False
        self._dropped = False
        self._processes: list[LocalProcess] = []
        self._counted: dict[str, int] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._on_disk = False
        self._exceeded = ""
        self._disk = self.folder
        """Where the writable layer lies when it lies on disk."""
        self._warming: asyncio.Task[None] | None = None
        owner.claim(self.folder, snapshot.id)

    async def join_cgroup(self, given: Path | None, rootless: bool) -> None:
        """Use the witness's cgroup, or as root make one."""
        if given is None and rootless:
            return
        from caisson_tracerd.cgroup import Cgroup, Limits

        if given is not None:
            self.cgroup = Cgroup.open(given)
        else:
            limits = Limits(self.limits.memory_bytes, self.limits.pids, self.limits.cpu_millis)
            self.cgroup, self._ours = Cgroup.create(self.id, limits, _PARENT), True
            owner.write(self.folder, self.snapshot.id, str(self.cgroup.path))
            paths = [str(path) for path in (self.cgroup.path, *self.cgroup.v1)]
            try:
                await self._ask({"op": "cleanup", "paths": paths})
            except BoxGone:
                pass  # its holder's own message says why
        if not self._ours:  # a new one has counted nothing, and nothing is moved into it
            self._counted = self.cgroup.stats()
            if not rootless:
                self._warming = asyncio.create_task(asyncio.to_thread(census.touch_own_cgroup))

    def opened(self, init_pid: int, on_disk: bool) -> None:
        """The holder reports that namespaces and mounts stand."""
        self.init_pid = init_pid
        self._on_disk = on_disk

    def lost(self) -> None:
        """The init or the holder has ended."""
        self._gone = True

    async def _ask(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        if self.holder is None or self._dropped:
            raise BoxGone(f"box {self.id} was dropped; fork a new one")
        await self.holder.ask(request, descriptors)

    # Commands

    async def start(self, command: Command, *, admit: Admit | None = None, wrap: Sequence[str] = ()) -> LocalProcess:
        """Run a command in the box, from its gate on.

        ``admit`` is awaited with the host pid of the process while it waits at the gate: everything but its exec is
        done. ``wrap`` is a program and arguments run outside the box around the launcher, for a tracer.
        """
        if self._gone:
            raise BoxGone(f"box {self.id} has ended; fork a new one")
        wall_s = self.limits.wall_s if command.wall_s is None else command.wall_s
        output = self.limits.output_bytes if command.output_bytes is None else command.output_bytes
        process = LocalProcess(command, wall_s, output, self._kill_all, self._judge)
        self._processes.append(process)
        descriptors = await process.connect()
        try:
            if self._owner is not None:
                for descriptor in descriptors[1:4]:  # so that /dev/stderr can be opened by name
                    _give_pipe(descriptor, self._owner)
            await self._ask(self._request(command, wrap), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        await process.waiting
        if process.pid == 0 or process.refusal:
            raise BoxStartFailed(f"box {self.id}: no process could be started ({process.refusal or 'the box ended'})")
        if admit is not None:
            try:
                await admit(process.pid)
            except BaseException:
                await process.abandon()
                raise
        if self._watcher is None and (self.cgroup is None or self._on_disk):
            self._watcher = asyncio.create_task(self._watch())
        process.open_gate()
        return process

    async def exec(self, command: Command, *, admit: Admit | None = None, wrap: Sequence[str] = ()) -> LocalProcess:
        """`start` for a box in which something runs already; the same steps, so the same confinement."""
        return await self.start(command, admit=admit, wrap=wrap)

    def _request(self, command: Command, wrap: Sequence[str]) -> dict[str, object]:
        limits = self.limits
        missing = ("memory", "pids") if self.cgroup is None else self.cgroup.missing
        rlimits = {"files": limits.files, "file_size": limits.disk_bytes}
        if "memory" in missing:
            rlimits["data"] = limits.memory_bytes
        if "pids" in missing and census.processes_counted_per_namespace():
            rlimits["processes"] = limits.pids
        return {
            "op": "launch",
            "argv": [os.fsdecode(word) for word in command.argv],
            "env": {**DEFAULT_ENV, **self.snapshot.env, **command.env},
            "cwd": command.cwd or self.snapshot.workdir,
            "rlimits": rlimits,
            "wrap": list(wrap),
            "cgroup": self._own_cgroup(),
            "python": list(PYTHON),
        }

    def _own_cgroup(self) -> dict[str, object] | None:
        """Where the launcher puts the process. Into a witness's cgroup ``admit`` moves it."""
        if self.cgroup is None or not self._ours:
            return None
        return {"v2": str(self.cgroup.path), "v1": [f"{path}/tasks" for path in self.cgroup.v1]}

    def _judge(self, outcome: Outcome, code: int | None, number: int | None) -> tuple[Outcome, str]:
        """Whether a limit ended the command, from what its cgroup counted meanwhile."""
        if self._exceeded and outcome is Outcome.KILLED:
            return outcome, self._exceeded
        if self.cgroup is None:
            return outcome, ""
        now = self.cgroup.stats()
        grown = {key: now.get(key, 0) - self._counted.get(key, 0) for key in ("oom_kills", "pids_max_hits")}
        self._counted = now
        natural = outcome in (Outcome.EXITED, Outcome.SIGNALED)
        if grown["oom_kills"] > 0:
            detail = (
                f"the kernel killed {grown['oom_kills']} process(es) at the limit of {self.limits.memory_bytes} bytes"
            )
            return (Outcome.MEMORY if natural and code != 0 else outcome), detail
        if grown["pids_max_hits"] > 0:
            detail = f"{grown['pids_max_hits']} fork(s) refused at the limit of {self.limits.pids} processes"
            return (Outcome.PIDS if natural and code != 0 else outcome), detail
        return outcome, ""

    async def _watch(self) -> None:
        """Limits no controller keeps: memory of all processes together, and a writable layer that lies on disk."""
        while not self._gone:
            await asyncio.sleep(_WATCH_S)
            if self.cgroup is None and self.limits.memory_bytes:
                used = await asyncio.to_thread(census.memory, self.init_pid)
                if used > self.limits.memory_bytes:
                    self._stop_all(Outcome.MEMORY)
            if self._on_disk:
                size, files = await asyncio.to_thread(census.disk, self._disk)
                over_size = self.limits.disk_bytes and size > self.limits.disk_bytes
                if over_size or (self.limits.inodes and files > self.limits.inodes):
                    self._exceeded = (
                        f"the writable layer outgrew its limits of {self.limits.disk_bytes} bytes and "
                        f"{self.limits.inodes} files; every process of the box was killed"
                    )
                    self._stop_all(Outcome.KILLED)

    def _stop_all(self, reason: Outcome) -> None:
        for process in self._processes:
            process.stop(reason)

    # Control

    async def job(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> bytes:
        """One request the holder's child does; its answer."""
        reader, writer = os.pipe()
        try:
            await self._ask(request, (writer, *descriptors))
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return await _read_all(reader, 4096)

    async def _checked(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        answer = await self.job(request, descriptors)
        if answer != b"ok":
            raise _problem(self.id, request, answer)

    async def _signal_all(self, number: int) -> None:
        if not self._gone:
            await self._checked({"op": "signal", "number": number})

    async def _kill_all(self) -> None:
        """By the pid namespace, at one stroke, frozen or not.

        Not by cgroup.kill: after it Linux 6.18 also kills whatever is later forked into that cgroup (its kill counter
        is compared with that of the forking process's own cgroup), and commands are started that way. They are gone
        when this returns: what is still on its way out is nobody's that was left running.
        """
        try:
            await self._signal_all(signal.SIGKILL)
        except BoxGone:
            return
        for _ in range(200):
            if not await self.processes():
                return
            await asyncio.sleep(0.01)

    async def freeze(self) -> None:
        """Stop every process of the box; CgroupError when one does not stand still."""
        if self._frozen:
            return
        if self.cgroup is not None:
            await asyncio.to_thread(self.cgroup.freeze)
        else:
            await self._signal_all(signal.SIGSTOP)
        self._frozen = True

    async def thaw(self) -> None:
        """Let them run on. Without a cgroup this also wakes what the box itself had stopped."""
        if not self._frozen:
            return
        if self.cgroup is not None:
            self.cgroup.thaw()
        else:
            await self._signal_all(signal.SIGCONT)
        self._frozen = False

    async def kill(self) -> None:
        """End every process of the box with SIGKILL, and wait for them; the box itself stays and can be captured."""
        for process in self._processes:
            process.condemn(Outcome.KILLED)
        await self._kill_all()
        for process in self._processes:
            await process.gone()
        await self.thaw()

    async def processes(self) -> list[tuple[int, bytes]]:
        """Host pid and command line (or name) of every live process of the box, its init left out."""
        if self._gone or not self.init_pid:
            return []
        return await asyncio.to_thread(census.processes, self.init_pid)

    # Files

    def _path(self, path: str) -> str:
        return posixpath.join(self.snapshot.workdir, path)

    async def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file as the box's own user would, folders above it included. BoxFileError when that is refused."""
        reader, writer = os.pipe()
        feeding = asyncio.create_task(asyncio.to_thread(_write_all, writer, data))
        try:
            await self._checked({"op": "put", "path": self._path(path), "mode": mode}, (reader,))
        finally:
            os.close(reader)
            await feeding

    async def get(self, path: str, limit: int = 1 << 20) -> bytes:
        """Read a regular file as the box's own user would. BoxFileError when it is absent or larger than ``limit``."""
        reader, writer = os.pipe()
        reading = asyncio.create_task(_read_all(reader, limit + 1))
        try:
            await self._checked({"op": "get", "path": self._path(path), "limit": limit}, (writer,))
        finally:
            os.close(writer)
            data = await reading
        if len(data) > limit:
            raise BoxFileError(f"box {self.id}: {path} is larger than {limit} bytes")
        return data

    async def diff(self) -> list[Change]:
        """What is added, changed and removed against the snapshot, in path order. Freezes the box meanwhile."""
        return captures.changes(await self._pack(None), self._store.index(self.snapshot))

    async def capture(self, target: Path) -> Capture:
        """Write the writable layer to ``target`` as a zstd tar. Freezes the box meanwhile.

        StateTooLarge when file contents, sparse files counted in full, exceed twice the disk limit.
        """
        unfinished = captures.partial(target)
        try:
            entries = await self._pack(unfinished)
            found = await asyncio.to_thread(captures.changes, entries, self._store.index(self.snapshot))
            unfinished.rename(target)
        finally:
            unfinished.unlink(missing_ok=True)
        return captures.summary(target, entries, found)

    async def _pack(self, target: Path | None) -> list[Entry]:
        was_frozen = self._frozen
        await self.freeze()
        reader, writer = os.pipe()
        receiving = asyncio.create_task(asyncio.to_thread(captures.receive, reader, target))
        try:
            try:
                limit = 2 * self.limits.disk_bytes + (64 << 20)
                answer = await self.job({"op": "pack", "limit": limit}, (writer,))
            finally:
                os.close(writer)
                await asyncio.wait([receiving])
            if isinstance(lost := receiving.exception(), OSError):  # our side's; the holder then only saw a broken pipe
                raise DiskFull(f"box {self.id}: its state cannot be kept: {lost.strerror}") from lost
            if answer != b"ok":
                raise _problem(self.id, {"op": "pack"}, answer)
            return receiving.result()
        except PROBLEMS as problem:
            raise StateInvalid(f"box {self.id}: its state could not be read ({problem})") from problem
        finally:
            if not was_frozen and not self._gone:
                await self.thaw()

    async def drop(self) -> None:
        """Kill everything, remove mounts, cgroup and folder. Idempotent."""
        if self._dropped:
            return
        self._stop_all(Outcome.KILLED)
        if self._watcher is not None:
            self._watcher.cancel()
        if self.holder is not None:
            await self.holder.close()
        if self._warming is not None:
            await asyncio.wait([self._warming])
        self._dropped = True
        for process in self._processes:
            process.close()
        if self.cgroup is not None and self._ours:
            await asyncio.to_thread(self.cgroup.remove)
        await asyncio.to_thread(remove, str(self.folder))


def _give_pipe(descriptor: int, uid: int) -> None:
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.fchown(descriptor, uid, uid)


def _problem(box: str, request: dict[str, object], answer: bytes) -> Exception:
    """The error behind a holder's child's answer; nothing at all means it was killed."""
    if not answer:
        return BoxGone(f"box {box} ended while {request['op']} was done")
    told = json.loads(answer)
    if request["op"] == "pack" and not told["errno"]:
        return StateTooLarge(f"box {box}: its state cannot be captured: {told['detail']}")
    if "path" in request:
        return BoxFileError(f"box {box}: {request['path']}: {told['detail']}", told["errno"])
    return BoxGone(f"box {box}: {request['op']} failed: {told['detail']}")


async def _read_all(descriptor: int, limit: int) -> bytes:
    """Read a pipe to its end (at most ``limit`` bytes are kept) and close it."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    done: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        chunk = os.read(descriptor, 1 << 16)
        data.extend(chunk[: limit - len(data)])
        if not chunk and not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return bytes(data)


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", buffering=0) as sink:
        view = memoryview(data)
        try:
            while view:
                view = view[sink.write(view) :]
        except BrokenPipeError:
            pass
