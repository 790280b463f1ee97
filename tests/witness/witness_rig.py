"""A stand-in for the box engine: a process that waits at a gate, in a bare bubblewrap or in none, under a watch."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from caisson_runner.witness import Watch

GATE = 'printf r >&"$R"; exec 3>&-; read -r _ <&4; exec 4<&-; exec "$@"'
BWRAP = (
    "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev",
    "--die-with-parent", "--chdir", "/tmp",
)  # fmt: skip
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "R": "3"}


class Waiting:
    """A launched command that waits at its gate."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int, gate: int) -> None:
        self.process = process
        self.pid = pid
        self._gate = gate

    def open(self) -> None:
        if self._gate >= 0:
            os.write(self._gate, b"\n")
            self.close()

    def close(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    async def finish(self, timeout: float = 20) -> int:
        try:
            return await asyncio.wait_for(self.process.wait(), timeout)
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


async def launch(
    argv: Sequence[str | bytes], *, wrap: Sequence[str] = (), box: Sequence[str] = BWRAP, cwd: Path | None = None,
    user: int | None = None,
) -> Waiting:  # fmt: skip
    """Starts the gate; the host pid behind it is found by the write end of the ready pipe."""
    ready_r, ready_w = os.pipe()
    gate_r, gate_w = os.pipe()
    inode = os.fstat(gate_r).st_ino

    def place() -> None:
        # Above 3 and 4 and whatever else is open: the two may have any number, each other's target too.
        high_ready, high_gate = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (ready_w, gate_r))
        os.dup2(high_ready, 3, inheritable=True)
        os.dup2(high_gate, 4, inheritable=True)
        os.close(high_ready)
        os.close(high_gate)

    process = await asyncio.create_subprocess_exec(
        *wrap, *box, "/bin/sh", "-c", GATE, "sh", *argv, env=ENV, cwd=cwd, preexec_fn=place, close_fds=False,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, user=user,
        **({"group": user, "extra_groups": []} if user is not None else {}),
    )  # fmt: skip
    os.close(ready_w)
    os.close(gate_r)
    said = await asyncio.to_thread(os.read, ready_r, 1)
    os.close(ready_r)
    assert said == b"r", "the launcher failed"
    return Waiting(process, await asyncio.to_thread(holder_of, inode), gate_w)


def holder_of(inode: int) -> int:
    """The shell that waits: the youngest process called sh that has the pipe open."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text() != "sh\n":
                continue
            for link in (folder / "fd").iterdir():
                with suppress(OSError):  # the shell still closes others after it said that it waits
                    if link.readlink().name == f"pipe:[{inode}]":
                        found.append(int(folder.name))
    assert found
    return max(found)


async def watched(watch: Watch, argv: Sequence[str | bytes], **options: object) -> int:
    """Runs one command to its end under the watch."""
    waiting = await launch(argv, wrap=watch.wrap, **options)  # type: ignore[arg-type]
    try:
        await watch.admit(waiting.pid)
        waiting.open()
        return await waiting.finish()
    finally:
        waiting.close()


async def gone(pid: int) -> bool:
    """Whether a process ends within five seconds."""
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists():
            return True
        await asyncio.sleep(0.1)
    return False
