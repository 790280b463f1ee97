"""Runs of our programs that the kernel left out: told, since no counter of a box can know of them.

Linux enters a program of a tracepoint once on a processor at a time. While its programs could not be preempted nobody
noticed. From 7.x on they can be: the next task on that processor makes its call and the program is not run for it. The
kernel counts these for the whole machine, not by box; so a box that was open meanwhile says how many there were.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from caisson_tracerd import bpfsys
from caisson_tracerd.errors import BpfError

WORDS: Final = "The kernel left out"
_PROG_GET_FD_BY_ID, _OBJ_GET_INFO = 13, 15
_PROGRAM_OF_LINK: Final = 8
_MISSES: Final = 208
"""Where ``struct bpf_prog_info`` has ``recursion_misses``, from 5.12 on."""
_INSIDE: Final = ("fexit__", "security__")
"""Hooks inside the calls: what they miss is told by the end of the call."""


def total(pins: Path) -> int:
    """How many runs the kernel has left out since the programs were loaded. 0 where it does not count them."""
    links = [link for link in pins.glob("link_*") if not link.name.removeprefix("link_").startswith(_INSIDE)]
    count = 0
    for link in links:
        with suppress(BpfError):
            count += of_link(link)
    return count


def of_link(link: Path) -> int:
    """Of the program that a pinned link attaches. BpfError."""
    return _of_program(_program_of(link))


def sentence(count: int) -> str:
    """The mark of a box that was open while so many were left out."""
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"{WORDS} {runs} of the programs on this machine (preempted in one); events may be missing."


def _program_of(link: Path) -> int:
    descriptor = bpfsys.pinned(link)
    try:
        (number,) = struct.unpack_from("I", _info(descriptor, str(link)), _PROGRAM_OF_LINK)
    finally:
        os.close(descriptor)
    return int(number)


def _of_program(number: int) -> int:
    what = f"program {number}"
    descriptor = bpfsys.call(_PROG_GET_FD_BY_ID, bpfsys.attributes(struct.pack("I", number)), what)
    try:
        (misses,) = struct.unpack_from("Q", _info(descriptor, what), _MISSES)
    finally:
        os.close(descriptor)
    return int(misses)


def _info(descriptor: int, what: str) -> bytes:
    """``struct bpf_prog_info`` or ``bpf_link_info``; what an older kernel does not know stays 0."""
    told = ctypes.create_string_buffer(256)
    asked = struct.pack("IIQ", descriptor, len(told), ctypes.addressof(told))
    bpfsys.call(_OBJ_GET_INFO, bpfsys.attributes(asked), what)
    return told.raw
