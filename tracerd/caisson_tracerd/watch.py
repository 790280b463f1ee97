"""``tracerd attach``: record a container from the daemon's own command line, without the runner."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final, cast

import click
import grpc
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from caisson_proto.record import strip_ring

from caisson_tracerd import process
from caisson_tracerd.errors import ServeError
from caisson_tracerd.layout import Layout

_CALL_S: Final = 30
_LOOK_S: Final = 0.2
_OPTIONS: Final = (("grpc.max_receive_message_length", 16 << 20), ("grpc.enable_http_proxy", 0))


def attach(
    layout: Layout, container: str, cgroup: str, docker_host: str, seconds: float | None, out: Path | None
) -> dict[str, Any]:
    """Record until the container ends, the seconds are over or a signal comes; returns what is known at the end.

    ``out`` gets the records in canonical form. ServeError with the daemon's reason.
    """
    box = f"attach-{os.getpid()}"
    me = process.look(os.getpid())
    owner = pb.Owner(pid=me.pid, start_ticks=me.start_ticks, pid_namespace=Path("/proc/self/ns/pid").stat().st_ino)
    request = pb.AttachRequest(id=box, container=container, cgroup_path=cgroup, docker_host=docker_host, owner=owner)
    with grpc.insecure_channel(f"unix:{layout.socket(os.getuid())}", options=_OPTIONS) as channel:
        stub: Any = rpc.TracerdStub(cast(Any, channel))
        try:
            made: pb.AttachResponse = stub.Attach(request, timeout=_CALL_S)
            try:
                said = _said(made)
                _show(said)
                _wait(Path(made.box.cgroup_path), seconds)
                sealed: pb.SealBoxResponse = stub.SealBox(pb.SealBoxRequest(id=box), timeout=_CALL_S)
                if out is not None:
                    _write(stub, box, out)
            finally:
                stub.DropBox(pb.DropBoxRequest(id=box), timeout=_CALL_S)
        except grpc.RpcError as problem:
            call = cast(grpc.Call, problem)
            raise ServeError(f"{call.details() or call.code()}; is tracerd running? see: tracerd status") from None
    said["counts"] = {
        one.kind: {"seen": one.seen, "delivered": one.delivered, "lost": one.seen - one.delivered}
        for one in sealed.counts
        if one.seen
    }
    return said


def _said(made: pb.AttachResponse) -> dict[str, Any]:
    return {
        "container": {"id": made.container_id, "name": made.container_name},
        "cgroup": made.box.cgroup_path,
        "since_boottime_ns": made.since_boottime_ns,
        "since_wall_ns": made.since_wall_ns,
        "already": json.loads(made.census_json),
    }


def _show(said: dict[str, Any]) -> None:
    """What was there before, on standard error: the record begins here."""
    processes = said["already"]["processes"]
    name = said["container"]["name"] or said["cgroup"]
    click.echo(
        f"{name}: recorded since {said['since_boottime_ns']} ns after boot; {len(processes)} processes ran then, "
        f"with {sum(len(one['open']) for one in processes)} open descriptors",
        err=True,
    )
    for one in processes:
        line = " ".join(one["argv"]) or f"[{one['name']}]"
        click.echo(f"  {one['pid']:>8}  {ascii(line)[1:-1][:120]}", err=True)


def _wait(cgroup: Path, seconds: float | None) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    left = seconds
    while cgroup.is_dir() and (left is None or left > 0):
        if stop.wait(_LOOK_S if left is None else min(left, _LOOK_S)):
            return
        left = None if left is None else left - _LOOK_S


def _write(stub: Any, box: str, out: Path) -> None:
    carry = b""
    with out.open("xb") as file:
        for piece in stub.ReadJournal(pb.ReadJournalRequest(id=box), timeout=_CALL_S):
            records, carry = strip_ring(piece.data, carry)
            file.write(records)
