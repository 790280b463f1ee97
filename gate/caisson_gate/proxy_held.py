"""How much of what a box sent waits in the layers of its connection, taken by nobody yet.

mitmproxy's layers put whatever comes while they wait (for an address, a dial, an answer before a pipelined request)
into queues without an end. A box that goes on sending would fill the memory of the gate, which is every box's.
"""

from __future__ import annotations

from typing import Any

from mitmproxy.proxy import events, layer
from mitmproxy.proxy.layers.http import HttpLayer
from mitmproxy.proxy.layers.http._events import RequestData


def held(top: layer.Layer) -> int:
    """Bytes of the box that the layers from ``top`` on keep."""
    total = 0
    left: list[Any] = [top]
    while left:
        one = left.pop()
        if one is None:
            continue
        for event in (*one._paused_event_queue, *getattr(one, "events", ())):
            if isinstance(event, events.DataReceived | RequestData):
                total += len(event.data)
        total += len(getattr(one, "buf", b""))
        left += [getattr(one, "child_layer", None), getattr(one, "layer", None)]
        if isinstance(one, HttpLayer):
            left += [one.connections.get(one.context.client), *one.streams.values()]
    return total
