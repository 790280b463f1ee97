#!/usr/bin/env python3
"""How little a recorded open can cost: the same opens under programs that do next to nothing, beside ours.

* ``empty pair``: a program on sys_enter and one on sys_exit; the first returns at once, the second after it has looked
  at the call's number. Nothing that is recorded from these two tracepoints can cost less.
* ``and a record``: the second one also puts 232 bytes into a ring, as large as our record. Nothing stands in them.
* ``and what it is about``: also the time, the box (ancestor id), and the name read at both ends.
* ``ours``: the witness, which also reads who it was, which object the kernel opened, and whether the views differ.

Every round takes all of them, so that a noisy minute hits all. CPU time of the opening thread; its programs run in it.
Needs root, starts a daemon of its own and removes it.

Usage: benchmarks/witness_floor.py [--rounds 5] [--calls 200000]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from caisson_proto import tracerd_pb2 as pb
from caisson_tracerd import trial
from timing import machine, others_watching, table
from witness_cost import WORK, Rig, measure

RECORD = 232
RING = 1 << 26
LEVELS = ("empty pair", "and a record", "and what it is about")
_OPENAT, _ORIG_AX, _SI = 257, 15 * 8, 13 * 8
_ARRAY, _RINGBUF, _RAW_TRACEPOINT = 2, 27, 17
_LOOKUP, _BOOT_NS, _ANCESTOR, _USER_STR, _KERNEL, _OUTPUT = 1, 125, 123, 114, 113, 130


def step(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One instruction."""
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


def set_to(register: int, value: int) -> bytes:
    return step(0xB7, register, value=value)


def copy(to: int, source: int) -> bytes:
    return step(0xBF, to, source)


def add(register: int, value: int) -> bytes:
    return step(0x07, register, value=value)


def load(to: int, source: int, offset: int) -> bytes:
    return step(0x79, to, source, offset)


def call(helper: int) -> bytes:
    return step(0x85, value=helper)


def map_of(register: int, descriptor: int) -> bytes:
    return step(0x18, register, 1, value=descriptor) + step(0)


END = set_to(0, 0) + step(0x95)


def read_kernel(stack: int, base: int, offset: int) -> bytes:
    """8 bytes at ``base + offset`` to the stack; uses registers 1 to 5."""
    return copy(3, base) + add(3, offset) + copy(1, 10) + add(1, stack) + set_to(2, 8) + call(_KERNEL)


def unless_open(rest: bytes) -> bytes:
    """``rest`` for the open calls; register 6 holds the context, 7 the registers of the call."""
    begin = copy(6, 1) + load(7, 6, 0) + read_kernel(-8, 7, _ORIG_AX) + load(1, 10, -8)
    return begin + step(0x55, 1, offset=len(rest) // 8, value=_OPENAT) + rest + END


def in_scratch(scratch: int, rest: bytes) -> bytes:
    """``rest`` with the scratch's address in register 8."""
    found = step(0x62, 10, offset=-12, value=0) + copy(2, 10) + add(2, -12) + map_of(1, scratch) + call(_LOOKUP)
    return found + step(0x15, 0, offset=len(rest) // 8 + 1, value=0) + copy(8, 0) + rest


def read_name(at: int) -> bytes:
    """The name of an openat to the scratch."""
    return read_kernel(-8, 7, _SI) + load(3, 10, -8) + copy(1, 8) + add(1, at) + set_to(2, 4097) + call(_USER_STR)


def programs(level: int, scratch: int, ring: int) -> dict[str, bytes]:
    send = copy(2, 8) + map_of(1, ring) + set_to(3, RECORD) + set_to(4, 0) + call(_OUTPUT)
    about = call(_BOOT_NS) + step(0x7B, 8, 0, 0) + set_to(1, 3) + call(_ANCESTOR) + step(0x7B, 8, 0, 8)
    if level == 0:
        return {"sys_enter": END, "sys_exit": unless_open(b"")}
    if level == 1:
        return {"sys_enter": END, "sys_exit": unless_open(in_scratch(scratch, send))}
    return {
        "sys_enter": unless_open(in_scratch(scratch, read_name(8192))),
        "sys_exit": unless_open(in_scratch(scratch, about + read_name(16) + send)),
    }


@contextmanager
def loaded(level: int) -> Iterator[None]:
    """The programs of a level, attached."""
    kernel = trial.Kernel()
    with ExitStack() as stack:

        def held(descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        scratch = held(kernel.command(0, struct.pack("IIII", _ARRAY, 4, 16384, 1)))
        ring = held(kernel.command(0, struct.pack("IIII", _RINGBUF, 0, 0, RING)))
        for point, code in programs(level, scratch, ring).items():
            text, terms = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
            wanted = struct.pack(
                "IIQQ", _RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(text), ctypes.addressof(terms)
            )
            name = ctypes.create_string_buffer(point.encode())
            program = held(kernel.command(5, wanted))
            held(kernel.command(17, struct.pack("QI", ctypes.addressof(name), program)))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200_000)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("witness_floor needs root")
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; least of {options.rounds} rounds")
    print(others_watching())
    root = Path(tempfile.mkdtemp(prefix="caisson-floor-"))
    found: dict[str, list[float]] = {}
    try:
        (root / "work.c").write_text(WORK)
        subprocess.run(["cc", "-O2", "-o", root / "work", root / "work.c"], check=True)
        for _ in range(options.rounds):
            found.setdefault("no programs", []).append(measure(root / "work", options.calls)[1])
            for level, name in enumerate(LEVELS):
                with loaded(level):
                    found.setdefault(name, []).append(measure(root / "work", options.calls)[1])
            with Rig(root) as rig:
                rig.stub.CreateBox(pb.CreateBoxRequest(id="box", ring_bytes=RING))
                found.setdefault("ours", []).append(measure(root / "work", options.calls, rig, "box")[1])
    finally:
        shutil.rmtree(root)
    bare = min(found["no programs"])
    table(
        "One open and close of a short path (aim: at most 15 % added)",
        ("programs", "ns", "added ns", "added"),
        [
            (name, f"{min(times):.0f}", f"{min(times) - bare:+.0f}", f"{100 * (min(times) / bare - 1):+.0f} %")
            for name, times in found.items()
        ],
    )


if __name__ == "__main__":
    main()
