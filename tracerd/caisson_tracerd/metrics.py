"""Metrics in Prometheus' text form, on a loopback address or a socket file.

Labels are callers (uids), event kinds and outcomes: sets that the machine's operator bounds. Nothing that a box or a
caller names is ever a label.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from caisson_tracerd.config import Endpoint
from caisson_tracerd.errors import ServeError
from caisson_tracerd.ledger import DRAIN_BUCKETS_S, OUTCOMES, Ledger, counts_of
from caisson_tracerd.registry import Registry

HEAD_BYTES: Final = 8192
HEAD_S: Final = 5.0
CONNECTIONS: Final = 16


class Collector:
    """Reads registry and ledger when somebody asks; in the daemon's loop, so nothing changes meanwhile."""

    def __init__(self, registry: Registry, ledger: Ledger, about: dict[str, str], starts: int) -> None:
        self._registry = registry
        self._ledger = ledger
        self._about = about
        self._starts = starts

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("caisson_tracerd", "The daemon and its programs", self._about)
        yield CounterMetricFamily("caisson_daemon_starts", "Starts of the daemon in this boot", self._starts)
        yield GaugeMetricFamily(
            "caisson_boxes_adopted", "Boxes taken over from an earlier daemon", self._ledger.adopted
        )
        yield from self._events()
        yield from self._boxes()
        yield CounterMetricFamily(
            "caisson_journal_write_failures",
            "Drains that could not write; the records stay in the ring",
            self._ledger.write_failures,
        )
        yield self._drains()

    def _events(self) -> Iterator[Metric]:
        sums = Counter(self._ledger.past_events)
        for box in self._registry.all():
            for count in counts_of(box):
                for outcome in OUTCOMES:
                    sums[box.note.uid, count.kind, outcome] += getattr(count, outcome)
        names = ["caller", "kind", "outcome"]
        events = CounterMetricFamily("caisson_events", "Events of boxes by what became of them", labels=names)
        partial = CounterMetricFamily(
            "caisson_partial_events", "Delivered events of which some field could not be read", labels=names[:2]
        )
        for (uid, kind, outcome), value in sorted(sums.items()):
            if outcome == "partial":
                partial.add_metric([str(uid), kind], value)
            else:
                events.add_metric([str(uid), kind, outcome], value)
        yield events
        yield partial

    def _boxes(self) -> Iterator[Metric]:
        boxes = GaugeMetricFamily("caisson_boxes", "Boxes by state", labels=["caller", "state"])
        steps = CounterMetricFamily("caisson_box_steps", "Boxes that took a step", labels=["caller", "step"])
        fill = GaugeMetricFamily("caisson_ring_fill_ratio", "The fullest ring now", labels=["caller"])
        peak = GaugeMetricFamily("caisson_ring_fill_peak_ratio", "The most a drain found", labels=["caller"])
        held = GaugeMetricFamily("caisson_journal_bytes", "Bytes of journals on disk", labels=["caller"])
        written = CounterMetricFamily("caisson_journal_written_bytes", "Bytes written to journals", labels=["caller"])
        states: Counter[tuple[int, str]] = Counter()
        fills: dict[int, float] = {}
        sizes: Counter[int] = Counter()
        callers = {0, *(uid for uid, _ in self._ledger.steps)}
        for box in self._registry.all():
            uid = box.note.uid
            callers.add(uid)
            states[uid, "sealed" if box.note.sealed else "open"] += 1
            sizes[uid] += box.journal.size
            if box.slot is not None:
                ring = box.slot.ring
                fills[uid] = max(fills.get(uid, 0.0), (ring.produced - ring.consumed) / ring.size)
        for uid in sorted(callers):
            for state in ("open", "sealed"):
                boxes.add_metric([str(uid), state], states[uid, state])
            for step in ("created", "sealed", "dropped"):
                steps.add_metric([str(uid), step], self._ledger.steps[uid, step])
            fill.add_metric([str(uid)], fills.get(uid, 0.0))
            peak.add_metric([str(uid)], self._ledger.peaks.get(uid, 0.0))
            held.add_metric([str(uid)], sizes[uid])
            written.add_metric([str(uid)], sizes[uid] + self._ledger.past_journal_bytes[uid])
        yield from (boxes, steps, fill, peak, held, written)

    def _drains(self) -> Metric:
        family = HistogramMetricFamily("caisson_drain_seconds", "Time one drain of a ring took")
        total, buckets = 0, []
        for bound in (*DRAIN_BUCKETS_S, float("inf")):
            total += self._ledger.drains[bound]
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        family.add_metric([], buckets, self._ledger.drain_seconds)
        return family


@contextlib.asynccontextmanager
async def served(endpoint: Endpoint, collector: Collector) -> AsyncIterator[str]:
    """Answer ``GET /metrics``; yields the address. ServeError when it is taken."""
    found = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=found)  # CPU seconds, resident memory, descriptors, start time
    found.register(collector)
    open_now = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            if open_now <= CONNECTIONS:
                async with asyncio.timeout(HEAD_S):
                    writer.write(_response(await reader.readuntil(b"\r\n\r\n"), found))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a request
        finally:
            open_now -= 1
            writer.close()

    options: dict[str, Any] = {"limit": HEAD_BYTES}
    try:
        if endpoint.path is not None:
            endpoint.path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(answer, endpoint.path, **options)
            endpoint.path.chmod(0o600)
            where = str(endpoint)
        else:
            server = await asyncio.start_server(answer, endpoint.host, endpoint.port, **options)
            where = str(Endpoint(None, endpoint.host, server.sockets[0].getsockname()[1]))
    except OSError as problem:
        raise ServeError(f"metrics cannot be served at {endpoint}: {problem.strerror}") from None
    try:
        async with server:
            yield where
    finally:
        if endpoint.path is not None:
            endpoint.path.unlink(missing_ok=True)


def _response(head: bytes, found: CollectorRegistry) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
        status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
    elif words[1].split(b"?")[0] != b"/metrics":
        status, kind, body = "404 Not Found", "text/plain", b"see /metrics\n"
    else:
        status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(found)
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if words[0] == b"HEAD" else body)
