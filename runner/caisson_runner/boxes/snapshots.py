"""How a snapshot comes about, whatever engine's boxes will stand on it: base, files, run lines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from caisson_runner.boxes import base
from caisson_runner.boxes.engine import Bind, Box, Command, Network, Outside
from caisson_runner.boxes.errors import RequestError, SnapshotBuildFailed, StateInvalid
from caisson_runner.boxes.holder.state import PROBLEMS, unpack
from caisson_runner.boxes.holder.tree import Filler
from caisson_runner.boxes.store import Snapshot, SnapshotSpec, Store


class BuildBox(Box, Protocol):
    """What a build asks of a box beyond `engine.Box`: a folder of its own on the host."""

    folder: Path


class Fork(Protocol):
    """`engine.Engine.fork`, as far as a build needs it."""

    def __call__(
        self, snapshot: Snapshot, *, binds: Sequence[Bind] = ..., network: Network = ...
    ) -> AbstractAsyncContextManager[BuildBox]: ...


async def build(store: Store, spec: SnapshotSpec, fork: Fork, outside: Outside | None = None) -> Snapshot:
    """Make a snapshot. Its id depends on content alone: the same spec on the same host gives the same id.

    ``outside`` is the way out of its run lines; without one they have no network.
    """
    below = await asyncio.to_thread(bottom, store, spec)
    if not spec.run:
        return below
    network: Network = "none" if outside is None else "gate"
    binds, env = (outside.binds, outside.env) if outside is not None else ((), {})
    async with fork(below, binds=binds, network=network) as box:
        async with outside.open(box) if outside is not None else nullcontext():
            for line in spec.run:
                await _run(box, line, env)
            await box.kill()
        state = box.folder / "state.tar.zst"
        await box.capture(state)
        layer = await asyncio.to_thread(_add_state, store, state)
    return store.add_snapshot((*below.layers, layer), below.base, below.host_usr, below.env, below.workdir, spec.label)


async def _run(box: BuildBox, line: str, env: Mapping[str, str]) -> None:
    done = await (await box.start(Command(("/bin/sh", "-c", line), env=env))).wait()
    if not done.ok:
        tail = (done.stderr or done.stdout)[-400:].decode("utf-8", "replace").strip()
        raise SnapshotBuildFailed(
            f"snapshot: {line!r} ended with {done.outcome.value} {done.exit_code} {done.detail}: {tail!r}"
        )


def bottom(store: Store, spec: SnapshotSpec) -> Snapshot:
    """Base and copied files, without run lines."""
    layers, name, host_usr, env = _base(store, spec.base)
    if spec.files:
        layers = (*layers, store.add_layer(lambda filler: base.fill_files(filler, spec.files)))
    label = "" if spec.run else spec.label
    return store.add_snapshot(layers, name, host_usr, {**env, **spec.env}, spec.workdir, label)


def _add_state(store: Store, state: Path) -> str:
    import zstandard

    def fill(descriptor: int) -> None:
        try:
            with zstandard.open(state, "rb") as stream:
                unpack(stream, descriptor, store.rootless, store.owner, readable=True)
        except PROBLEMS as problem:
            raise StateInvalid(f"snapshot: {problem}") from problem

    return store.add_layer_at(fill)


def _base(store: Store, wanted: str | Path) -> tuple[tuple[str, ...], str, bool, dict[str, str]]:
    """(layers, base, whether the host's /usr belongs to it, environment)."""
    if wanted == "host":
        if not store.host_layer:
            store.host_layer = store.add_layer(base.fill_host)
        return (store.host_layer,), base.host_id(), True, {}
    if isinstance(wanted, Path):
        if not wanted.is_file():
            raise RequestError(f"{wanted} is no file; a base is 'host', a snapshot or a root filesystem tar")
        skipped: list[str] = []
        root = store.add_layer(lambda filler: base.fill_rootfs(filler, wanted, skipped))
        below = store.add_snapshot((root,), "rootfs", False, {}, "/", "")
        present = {path for path, entry in store.index(below).items() if entry.kind != "whiteout"}

        def fill(filler: Filler) -> None:
            base.fill_missing(filler, present)

        return (root, store.add_layer(fill)), f"rootfs:{base.digest_file(wanted)}", False, {}
    below = store.open(wanted)
    return below.layers, below.base, below.host_usr, dict(below.env)
