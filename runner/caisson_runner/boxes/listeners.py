"""The sockets the gate answers a box on: made inside the box's network, held outside it.

One listener is in one box's namespace, so whose connection it is needs no address and cannot be forged.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caisson_runner.boxes.errors import BoxGone, NetworkRefused, RequestError
from caisson_runner.boxes.holder import wire

if TYPE_CHECKING:
    from caisson_runner.boxes.box import LocalBox


@dataclass(frozen=True, slots=True)
class Listener:
    """One descriptor out of a box. ``about`` says what it is: ``what`` is tcp, dns, packets or diag."""

    about: dict[str, Any]
    descriptor: int


async def listen(box: LocalBox, ports: Sequence[int]) -> list[Listener]:
    """Lead every address of the box to its own loopback and listen there; the caller closes the descriptors.

    NetworkRefused when the kernel refuses any step: then nothing is open, and the box has no way out.
    """
    if box.network != "gate":
        raise RequestError(f"box {box.id} was forked without a network; fork it with network='gate'")
    ours, theirs = socket.socketpair()
    receiving = asyncio.create_task(asyncio.to_thread(_receive, ours))
    answer = b""
    try:
        answer = await box.job({"op": "listen", "ports": sorted(set(ports))}, (theirs.fileno(),))
    finally:
        theirs.close()
        await asyncio.wait([receiving])
        ours.close()
        made = receiving.result()
        if answer != b"ok":
            close(made)
    if answer != b"ok":
        if not answer:
            raise BoxGone(f"box {box.id} ended while its network was made")
        told = json.loads(answer)
        raise NetworkRefused(
            f"box {box.id}: its network could not be made ({told['detail']}); it stays closed; see: caisson-run doctor"
        )
    return made


def close(made: Sequence[Listener]) -> None:
    """Let go of the descriptors."""
    for one in made:
        os.close(one.descriptor)


def _receive(way: socket.socket) -> list[Listener]:
    made: list[Listener] = []
    while (received := wire.receive(way)) is not None:
        about, descriptors = received
        made.extend(Listener(about, descriptor) for descriptor in descriptors)
    return made
