"""Which process an event of the gate is about, from the witness's record.

The gate notes the inode number of the socket at the box's end, the witness the same number with each connect: where
both are there the pid is certain. Else the last process that asked for that address and port before the event is named.
Both are hints for a reader; nothing is decided by them.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from caisson_proto.record import Kind, Record

_AF_INET, _AF_INET6 = 2, 10
_SEND, _FASTOPEN = 5, 6
_SLACK_NS: Final = 50_000_000
"""A record can be stamped at the end of its call, after the gate has answered."""
Found = dict[str, Any]


def tie(events: Iterable[dict[str, Any]], records: Sequence[Record]) -> Iterator[Found]:
    """For each event that leads to a process: its seq, the pid with its start, and how it is known."""
    sockets: dict[int, list[Record]] = defaultdict(list)
    places: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        place = destination(record)
        if place is None:
            continue
        places[place].append(record)
        if record.args[5]:
            sockets[record.args[5]].append(record)
    by_connection: dict[int, Found] = {}
    for event in events:
        conn = event.get("conn")
        found = by_connection.get(conn) if conn is not None else None
        if found is None:
            found = _find(event, sockets, places)
            if found is None:
                continue
            if conn is not None:
                by_connection[conn] = found
        yield {"seq": event["seq"], **found}


def _find(
    event: dict[str, Any], sockets: dict[int, list[Record]], places: dict[tuple[str, int], list[Record]]
) -> Found | None:
    at = int(event["t_mono"]) + _SLACK_NS
    if (record := _last(sockets.get(event.get("inode", 0), ()), at)) is not None:
        return {"pid": record.pid, "start_ns": record.start_ns, "record": record.seq, "by": "socket"}
    target = event.get("orig_dst")
    if not isinstance(target, list) or len(target) != 2 or not isinstance(target[0], str):
        return None
    if (record := _last(places.get((target[0], target[1]), ()), at)) is not None:
        return {"pid": record.pid, "start_ns": record.start_ns, "record": record.seq, "by": "destination"}
    return None


def _last(records: Sequence[Record], at: int) -> Record | None:
    """The last one not after ``at``; records come in order of their numbers, which is nearly that of time."""
    place = bisect_right(records, at, key=lambda record: record.time_ns)
    return records[place - 1] if place else None


def destination(record: Record) -> tuple[str, int] | None:
    """Address and port a record says was asked for, None for every other record."""
    if record.kind is Kind.CONNECT:
        family, port = record.args[0], record.args[1]
    elif record.kind is Kind.SOCKET and record.args[0] in (_SEND, _FASTOPEN):
        family, port = record.args[1], record.args[2]
    else:
        return None
    where = {_AF_INET: slice(4, 8), _AF_INET6: slice(8, 24)}.get(family)
    if where is None or record.addr is None or len(record.addr) < where.stop:
        return None
    address = ipaddress.ip_address(record.addr[where])  # of a struct sockaddr_in or sockaddr_in6
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), port
