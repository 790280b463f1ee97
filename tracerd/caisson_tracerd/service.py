"""The gRPC surface: one servicer for each caller, who is known by the socket."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc

from caisson_tracerd import attach, census, lease
from caisson_tracerd.box import Box
from caisson_tracerd.cgroup import Limits
from caisson_tracerd.errors import (
    BoxExists,
    BoxState,
    BoxUnknown,
    NotYours,
    TooMany,
    TracerdError,
    UsageError,
)
from caisson_tracerd.log import LOG, Priority
from caisson_tracerd.registry import Registry

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_CODES: Final = {
    BoxExists: grpc.StatusCode.ALREADY_EXISTS,
    BoxUnknown: grpc.StatusCode.NOT_FOUND,
    BoxState: grpc.StatusCode.FAILED_PRECONDITION,
    NotYours: grpc.StatusCode.PERMISSION_DENIED,
    TooMany: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UsageError: grpc.StatusCode.INVALID_ARGUMENT,
}


def package_version() -> str:
    try:
        return version("caisson")
    except PackageNotFoundError:
        return "0"


def boot_wall_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_BOOTTIME: what turns record times into dates."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


Caller = Callable[[Context], int]
"""Who speaks, as a uid. NotYours when nobody may know."""
STREAMS_OF_CALLER: Final = 256


class Service(rpc.TracerdServicer):
    """What a caller may ask."""

    def __init__(self, registry: Registry, caller: Caller, info: pb.GetInfoResponse) -> None:
        self._registry = registry
        self._whose = caller
        self._followers: Counter[int] = Counter()
        self._info = info

    async def _caller(self, context: Context) -> int:
        try:
            return self._whose(context)
        except TracerdError as problem:
            await _abort(context, problem)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        await self._caller(context)
        return self._info

    async def CreateBox(self, request: pb.CreateBoxRequest, context: Context) -> pb.CreateBoxResponse:
        uid = await self._caller(context)
        limits = Limits(request.limits.memory_bytes, request.limits.pids, request.limits.cpu_millis)
        owner = await self._owner(uid, request, context)
        work = self._registry.create(
            uid, request.id, limits, request.ring_bytes, request.lossless, owner, request.looks
        )
        box, missing = await _answer(context, uid, work)
        return pb.CreateBoxResponse(box=_box(box), limits_missing=missing)

    async def _owner(
        self, uid: int, request: pb.CreateBoxRequest | pb.AttachRequest, context: Context
    ) -> tuple[int, int] | None:
        if not request.HasField("owner"):
            return None
        told = request.owner
        try:
            return lease.checked(uid, told.pid, told.start_ticks, told.pid_namespace)
        except (TracerdError, OSError) as problem:
            await _abort(context, problem, uid)

    async def Admit(self, request: pb.AdmitRequest, context: Context) -> pb.AdmitResponse:
        uid = await self._caller(context)
        start = await _answer(context, uid, self._registry.admit(uid, request.id, request.pid, request.start_ticks))
        return pb.AdmitResponse(start_boottime_ns=start)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.AttachResponse:
        uid = await self._caller(context)
        owner = await self._owner(uid, request, context)
        return await _answer(context, uid, self._attach(uid, request, owner))

    async def _attach(self, uid: int, request: pb.AttachRequest, owner: tuple[int, int] | None) -> pb.AttachResponse:
        target = await asyncio.to_thread(
            attach.find, request.container, request.cgroup_path, request.docker_host, uid, self._registry.layout
        )
        box = await self._registry.attach(uid, request.id, target, request.ring_bytes, owner)
        since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            found = await asyncio.to_thread(census.take, target.path)
        except BaseException:
            await self._registry.drop(uid, request.id)
            raise
        return pb.AttachResponse(
            box=_box(box),
            container_id=target.container,
            container_name=target.name,
            since_boottime_ns=since,
            since_wall_ns=since + boot_wall_ns(),
            census_json=json.dumps(found),
        )

    async def ReadJournal(
        self, request: pb.ReadJournalRequest, context: Context
    ) -> AsyncIterator[pb.ReadJournalResponse]:
        uid = await self._caller(context)
        try:
            box = self._registry.get(uid, request.id)
            if self._followers[uid] >= STREAMS_OF_CALLER:
                raise TooMany(f"you read {STREAMS_OF_CALLER} journals at once already; end some")
        except TracerdError as problem:
            await _abort(context, problem, uid)
        with suppress(OSError):  # what the disk does not take, the box's marks tell
            box.drain(box.note.ring_bytes)
        self._followers[uid] += 1
        try:
            async for offset, data in box.journal.read(request.offset, request.follow):
                yield pb.ReadJournalResponse(offset=offset, data=data)
        finally:
            self._followers[uid] -= 1

    async def SealBox(self, request: pb.SealBoxRequest, context: Context) -> pb.SealBoxResponse:
        uid = await self._caller(context)
        box = await _answer(context, uid, self._registry.seal(uid, request.id))
        counts = [
            pb.ClassCount(
                kind=count.kind,
                seen=count.seen,
                delivered=count.delivered,
                dropped_ring=count.dropped_ring,
                dropped_map=count.dropped_map,
                unreadable=count.unreadable,
                partial=count.partial,
            )
            for count in box.counts()
        ]
        return pb.SealBoxResponse(
            journal_bytes=box.journal.size, counts=counts, marks=box.note.marks, freezes=_freezes(box)
        )

    async def DropBox(self, request: pb.DropBoxRequest, context: Context) -> pb.DropBoxResponse:
        uid = await self._caller(context)
        await _answer(context, uid, self._registry.drop(uid, request.id))
        return pb.DropBoxResponse()

    async def ListBoxes(self, request: pb.ListBoxesRequest, context: Context) -> pb.ListBoxesResponse:
        uid = await self._caller(context)
        return pb.ListBoxesResponse(boxes=[_box(box) for box in self._registry.of(uid)])


def _box(box: Box) -> pb.Box:
    return pb.Box(
        id=box.note.id,
        cgroup_path=box.note.cgroup,
        cgroup_id=box.note.cgroup_id,
        state=pb.Box.STATE_SEALED if box.note.sealed else pb.Box.STATE_OPEN,
        journal_bytes=box.journal.size,
        lossless=box.note.lossless,
        marks=box.marks,
    )


def _freezes(box: Box) -> pb.Freezes | None:
    found = box.note.freezes
    if found is None:
        return None
    return pb.Freezes(
        count=found["count"],
        total_ns=found["total_ns"],
        longest_ns=found["longest_ns"],
        peak_bytes=found["peak_bytes"],
        ring_bytes=box.note.ring_bytes,
        gaps=[pb.Freezes.Gap(begin_ns=begin, end_ns=end) for begin, end in found["gaps"]],
    )


async def _answer(context: Context, uid: int, work: Awaitable[T]) -> T:
    try:
        return await work
    except (TracerdError, OSError) as problem:
        await _abort(context, problem, uid)


async def _abort(context: Context, problem: TracerdError | OSError, uid: int | None = None) -> NoReturn:
    """Our errors as a status with one line; anything else of the host as INTERNAL."""
    code = next((code for kind, code in _CODES.items() if isinstance(problem, kind)), grpc.StatusCode.INTERNAL)
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    who: object = uid if uid is not None else context.peer()
    LOG.say(Priority.NOTICE, "request refused", caller=who, code=code.name, reason=problem)
    await context.abort(code, str(problem))
    raise AssertionError("abort returns never")
