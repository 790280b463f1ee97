"""The local engine: bubblewrap over overlayfs, as root or as a plain user, by the same steps.

As root the box has its own cgroup (or the witness's) and belongs to one unprivileged host uid; as a plain user it
belongs to that user in a user namespace. What differs is chosen in `room` and here in `_spec`, nowhere else.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import shutil
import socket
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from caisson_runner.boxes import owner, seccomp, snapshots
from caisson_runner.boxes.box import LocalBox
from caisson_runner.boxes.engine import Bind, BoxLimits, Network, Outside
from caisson_runner.boxes.errors import (
    BoxError,
    BoxStartFailed,
    DiskFull,
    StateInvalid,
    StateTooLarge,
    ToolMissing,
    UserNamespacesUnavailable,
)
from caisson_runner.boxes.keeper import Holder, Keeper
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store

_T = TypeVar("_T")


class LocalEngine:
    """See `engine.Engine`. Use it as an async context manager; leaving it ends the keeper process.

    ``allow`` names system call groups of `seccomp.REASONS` boxes may use; ``upper_on_disk`` is for kernels whose tmpfs
    keeps no user attributes (chosen by itself there, plain user before Linux 6.6).
    """

    def __init__(self, store: Store | None = None, *, allow: Collection[str] = (), upper_on_disk: bool = False) -> None:
        self.store = store or Store()
        self.rootless = self.store.rootless
        self.name = "local-rootless" if self.rootless else "local-root"
        self._allow = tuple(allow)
        self._upper_on_disk = upper_on_disk
        self._keeper: Keeper | None = None
        self._bwrap = ""

    async def __aenter__(self) -> LocalEngine:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the keeper. Boxes that are still held keep their holders until they are dropped."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def _start(self) -> Keeper:
        if self._keeper is None:
            if platform.machine() != "x86_64":
                raise ToolMissing(f"boxes run on x86_64 only so far, this is {platform.machine()}")
            self._bwrap = find_bwrap()
            owner.sweep(self.store.home)
            self._keeper = Keeper(seccomp.build(self._allow), self.store.owner)
        return self._keeper

    async def snapshot(self, spec: SnapshotSpec, outside: Outside | None = None) -> Snapshot:
        """See `snapshots.build`."""
        return await snapshots.build(self.store, spec, self.fork, outside)

    @asynccontextmanager
    async def fork(
        self,
        snapshot: Snapshot,
        *,
        box_id: str | None = None,
        limits: BoxLimits = BoxLimits(),  # noqa: B008 - a frozen value
        state: Path | bytes | None = None,
        restore: Sequence[str] = (),
        binds: Sequence[Bind] = (),
        network: Network = "none",
        cgroup: Path | None = None,
    ) -> AsyncIterator[LocalBox]:
        """A fresh box. Leaving the context, by whatever way, kills its processes and removes every trace.

        ``state`` prefills the writable layer from a capture; ``restore`` leaves these path prefixes out of it.
        ``cgroup`` is the witness's, made for this box; without it the root engine makes its own.
        """
        keeper = self._start()
        if any(layer not in self.store.verified for layer in snapshot.layers):
            await asyncio.to_thread(self.store.verify, snapshot)
        box = LocalBox(self.store, snapshot, box_id, limits, tuple(binds), network)
        try:
            spec = self._spec(box, restore)
            ours, theirs = socket.socketpair()
            with theirs:
                box.holder = Holder(ours, box.lost)
                descriptors: tuple[int, ...] = (theirs.fileno(),)
                feeding = None
                if state is not None:
                    reader, writer = os.pipe()
                    try:
                        keeper.fork(spec, (*descriptors, reader))
                    finally:
                        os.close(reader)
                    from caisson_runner.boxes.capture import feed

                    feeding = asyncio.create_task(asyncio.to_thread(feed, state, writer))
                else:
                    keeper.fork(spec, descriptors)
            await box.join_cgroup(cgroup, self.rootless)
            answer = await box.holder.up
            if feeding is not None:
                await feeding
            if "up" not in answer:
                raise refusal(answer, limits)
            box.opened(int(answer["up"]), bool(answer["on_disk"]))
            yield box
        finally:
            await uncancelled(box.drop())

    def _spec(self, box: LocalBox, restore: Sequence[str]) -> dict[str, Any]:
        snapshot = box.snapshot
        layers = [str(self.store.layer_files(layer)) for layer in reversed(snapshot.layers)]
        return {
            "bwrap": self._bwrap,
            "layers": layers,
            "host_usr": snapshot.host_usr,
            "disk": str(box.folder),
            "disk_bytes": box.limits.disk_bytes,
            "inodes": box.limits.inodes,
            "upper_on_disk": self._upper_on_disk,
            "binds": [[str(bind.source.absolute()), bind.target] for bind in box.binds],
            "restore": list(restore),
            "cleanup": [],
        }


def find_bwrap() -> str:
    """The bubblewrap program. ToolMissing without it."""
    found = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if not found:
        raise ToolMissing("bubblewrap is not installed; run: apt-get install bubblewrap")
    return found


USER_NAMESPACES_REMEDY = (
    "allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0), or run in a container that has them"
)


def refusal(answer: dict[str, Any], limits: BoxLimits) -> BoxError:
    """The error behind a holder's "failed" message."""
    stage, number, detail = str(answer["failed"]), int(answer["errno"]), str(answer["detail"])
    denied = number in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.EINVAL)
    if (stage == "user namespace" and denied) or ("bubblewrap" in stage and "namespace" in detail):
        return UserNamespacesUnavailable(f"this host refuses user namespaces ({detail}); {USER_NAMESPACES_REMEDY}")
    if number in (errno.ENOSPC, errno.EDQUOT) and stage == "unpack state":
        return StateTooLarge(f"the state does not fit into {limits.disk_bytes} bytes and {limits.inodes} files")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"box: {detail}; its limits are {limits.disk_bytes} bytes and {limits.inodes} files")
    if stage.startswith("unpack state"):
        return StateInvalid(f"the state could not be unpacked: {detail.removeprefix('unpack state: ')}")
    return BoxStartFailed(f"box could not be made: {detail}; see: caisson-run doctor")


async def uncancelled(action: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end even when the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(action)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as asked:
            if task.cancelled():
                raise
            cancelled = asked
        except Exception:
            break
    if cancelled is not None and not task.exception():
        raise cancelled
    return task.result()
