"""What ``tracerd status`` tells, asked from the daemon when there is one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from caisson_tracerd import pins
from caisson_tracerd.errors import PinsOlder, TracerdError
from caisson_tracerd.layout import Layout


def look(layout: Layout) -> dict[str, Any]:
    """Programs, daemon and the caller's boxes, ready for JSON."""
    try:
        manifest = pins.check(layout)
        programs = f"{manifest['tier']} tier, pinned under {manifest['pins']}" if manifest else "not loaded"
    except PinsOlder as problem:
        manifest, programs = problem.manifest, f"{problem.manifest['tier']} tier, {problem}"
    except TracerdError as problem:
        manifest, programs = None, str(problem)
    answer = asyncio.run(_ask(layout))
    return {
        "programs": programs,
        "manifest": manifest,
        "daemon": answer["daemon"],
        "version": answer.get("version"),
        "boxes": answer.get("boxes", []),
    }


async def _ask(layout: Layout) -> dict[str, Any]:
    path = layout.socket(os.geteuid())
    if not path.exists():
        return {"daemon": f"not running (no socket {path})"}
    import grpc
    import grpc.aio
    from caisson_proto import tracerd_pb2 as pb
    from caisson_proto import tracerd_pb2_grpc as rpc

    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = rpc.TracerdStub(channel)
        try:
            info = await stub.GetInfo(pb.GetInfoRequest(), timeout=5)
            boxes = await stub.ListBoxes(pb.ListBoxesRequest(), timeout=5)
        except grpc.aio.AioRpcError as problem:
            return {"daemon": f"does not answer at {path}: {problem.code().name.lower()}"}
    return {
        "daemon": f"answers at {path}, version {info.version}, api {info.api}",
        "version": info.version,
        "boxes": [
            {
                "id": box.id,
                "state": pb.Box.State.Name(box.state).removeprefix("STATE_").lower(),
                "journal_bytes": box.journal_bytes,
                "cgroup": box.cgroup_path,
            }
            for box in boxes.boxes
        ],
    }
