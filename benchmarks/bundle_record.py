#!/usr/bin/env python3
"""What a bundle of ten million events costs to write, to open, to look into and to read through.

The record in frames with an index is compared with the same record as one zstd frame without one, which has to be
unpacked from its beginning to find anything. Every figure of reading is of a process of its own; memory is its peak,
without what the interpreter and the imports take.

Usage: benchmarks/bundle_record.py [--events 10000000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import zstandard
from caisson_proto.record import Kind, Record, decode, encode, heads
from caisson_runner.bundle import Bundle, BundleWriter
from caisson_runner.bundle.check import verify
from caisson_runner.bundle.recording import EVENTS, INDEX, write_record
from timing import machine, table

EVENTS_OF_A_PROCESS = 2_000
CHUNK = 1 << 20
BEFORE = "whole.zst"
PREFIX = b"/usr/lib/python3/dist-packages/"


class Clock:
    """Time that passes outside the making of the record."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.inside = 0.0

    def timed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            begun = time.perf_counter()
            piece = next(pieces, None)
            self.inside += time.perf_counter() - begun
            if piece is None:
                return
            yield piece

    def seconds(self) -> float:
        return time.perf_counter() - self.begun - self.inside


def made(count: int) -> Iterator[bytes]:
    """A canonical record of opens, `EVENTS_OF_A_PROCESS` by each process, a microsecond apart, in pieces."""
    path = PREFIX + b"%010d.py"
    one = bytearray(encode(Record(Kind.OPEN, pid=1, given=path % 0, resolved=path % 0, comm=b"python3")))
    places = [at + len(PREFIX) for at in range(len(one)) if one.startswith(path % 0, at)]
    gathered = bytearray()
    for at in range(count):
        pid = 1000 + at // EVENTS_OF_A_PROCESS
        one[8:16] = (at + 1).to_bytes(8, "little")
        one[16:24] = (at * 1000).to_bytes(8, "little")
        one[48:52] = pid.to_bytes(4, "little")
        number = b"%010d" % (at * 7919 % 10**10)
        for place in places:
            one[place : place + 10] = number
        gathered += one
        if len(gathered) >= CHUNK:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def write(root: Path, count: int) -> dict[str, float]:
    """The bundle, and beside it the record as one frame. Seconds, and bytes."""
    with BundleWriter(root / "b") as writer:
        writer.add_json("run.json", {"id": "bench"})
        clock = Clock()
        with writer.create(EVENTS) as file:
            index = write_record(clock.timed(made(count)), file)
        writer.add_bytes(INDEX, index.dumps())
        packed = clock.seconds()
        writer.adopt(index)
        clock = Clock()
    signed = clock.seconds()
    clock = Clock()
    with (root / BEFORE).open("wb") as out, zstandard.ZstdCompressor(level=3).stream_writer(out) as pack:
        for piece in clock.timed(made(count)):
            pack.write(piece)
    whole = clock.seconds()
    return {
        "raw": index.raw, "packed": (root / "b" / EVENTS).stat().st_size, "index": (root / "b" / INDEX).stat().st_size,
        "frames": len(index.frames), "pack_s": packed, "sign_s": signed, "whole": (root / BEFORE).stat().st_size,
        "whole_s": whole,
    }  # fmt: skip


def whole_frame(root: Path) -> Iterator[tuple[memoryview, int, int, int, int, int]]:
    """The heads of the record that is one frame."""
    rest = b""
    with (root / BEFORE).open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        while piece := reader.read(CHUNK):
            data = memoryview(rest + piece)
            end = 0
            for at, size, seq, time_ns, pid in heads(data):
                yield data, at, size, seq, time_ns, pid
                end = at + size
            rest = bytes(data[end:])


def read(what: str, root: Path, count: int) -> int:
    """One way of reading; how many events it found."""
    pid = 1000 + (count - 1) // EVENTS_OF_A_PROCESS
    late = count * 1000 - 1_000_000
    if what == "verify":
        return verify(root / "b").witness["recorded"]
    if what == "pid, whole":
        return sum(1 for data, at, size, *_, of in whole_frame(root) if of == pid for _ in decode(data[at : at + size]))
    if what == "time, whole":
        return sum(
            1
            for data, at, size, _seq, when, _pid in whole_frame(root)
            if when >= late
            for _ in decode(data[at : at + size])
        )
    bundle = Bundle.open(root / "b")
    if what == "open":
        return bundle.index().records
    if what == "pid":
        return sum(1 for _ in bundle.records(pid=pid))
    if what == "time":
        return sum(1 for _ in bundle.records(start=late))
    if what == "event":
        return int(bundle.record(count // 2) is not None)
    if what == "stream":
        return sum(1 for _ in bundle.records())
    raise SystemExit(f"unknown: {what}")


def peak() -> int:
    """KiB. Not getrusage's: that remembers what stood in the process before its exec."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def child(what: str, root: Path, count: int) -> None:
    """Prints events, seconds and KiB."""
    before = peak()
    begun = time.perf_counter()
    found = read(what, root, count)
    seconds = time.perf_counter() - begun
    print(json.dumps([found, seconds, peak() - before]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.child:
        child(options.child[0], Path(options.child[1]), options.events)
        return
    count = options.events
    with tempfile.TemporaryDirectory(prefix="caisson-bench-") as name:
        os.environ["CAISSON_HOME"] = name + "/home"
        root = Path(name)
        sizes = write(root, count)
        print(machine())
        table(
            f"Writing {count:,} events, {sizes['raw'] / 1e9:.2f} GB of record",
            ("form", "seconds", "events/s", "bytes", "of it index"),
            [
                (
                    f"{sizes['frames']:.0f} frames and an index", f"{sizes['pack_s']:.1f}",
                    f"{count / sizes['pack_s']:,.0f}", f"{sizes['packed'] + sizes['index']:,.0f}",
                    f"{sizes['index']:,.0f}",
                ),
                (
                    "one frame", f"{sizes['whole_s']:.1f}", f"{count / sizes['whole_s']:,.0f}",
                    f"{sizes['whole']:,.0f}", "",
                ),
                ("manifest, tags, signature, to the disk", f"{sizes['sign_s']:.1f}", "", "", ""),
            ],
        )  # fmt: skip
        rows = []
        for what, title in (
            ("open", "open the bundle"), ("event", "one event in the middle, by number"),
            ("pid", "the last process's events"), ("pid, whole", "the same, one frame without an index"),
            ("time", "the last millisecond"), ("time, whole", "the same, one frame without an index"),
            ("verify", "verify signature and every file"), ("stream", "every event, decoded"),
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, __file__, "--events", str(count), "--child", what, name],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found, seconds, kib = json.loads(done.stdout)
            rows.append((title, f"{found:,}", f"{seconds:.3f}", f"{kib / 1024:.0f}"))
        table("Reading", ("what", "events found", "seconds", "MiB more at most"), rows)


if __name__ == "__main__":
    main()
