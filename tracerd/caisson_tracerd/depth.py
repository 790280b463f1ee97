"""Where this process stands below the kernel's own roots, which no file in a container tells.

In a cgroup namespace every file says "/", but the programs count levels from the real root; in a pid namespace
processes have other numbers than in the record. So the kernel is asked, by programs of a few instructions that are run
once (BPF_PROG_TEST_RUN; Linux 5.10) and loaded for that moment only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path
from typing import Final

from caisson_tracerd import bpfsys
from caisson_tracerd.errors import BpfError

DEEPEST: Final = 64
_PROG_LOAD, _PROG_TEST_RUN = 5, 10
_RAW_TRACEPOINT: Final = 17
_ANCESTOR_CGROUP_ID: Final = 123
_CURRENT_PID_TGID: Final = 14


@cache
def of_mount(root: Path) -> int | None:
    """Levels above the mount's root; None when the kernel does not tell (not root, or an old kernel)."""
    identity = root.stat().st_ino
    for level in range(DEEPEST):
        try:
            if _is_ancestor(level, identity):
                return level
        except BpfError:
            return None
    return None


@cache
def own_pid() -> int | None:
    """This process's number as the programs see it; None when the kernel does not tell."""
    try:
        return _run(
            _instruction(0x85, value=_CURRENT_PID_TGID),  # r0 = tgid << 32 | pid
            _instruction(0x77, value=32),
            _instruction(0x95),
        )
    except BpfError:
        return None


def _is_ancestor(level: int, identity: int) -> bool:
    """Whether this process's ancestor cgroup at ``level`` has this id."""
    answer = _run(
        _instruction(0xB7, register=1, value=level),  # r1 = level
        _instruction(0x85, value=_ANCESTOR_CGROUP_ID),  # r0 = ancestor's id, 0 when there is none
        _instruction(0x18, register=2, value=identity & 0xFFFFFFFF),  # r2 = identity, in two halves
        _instruction(0x00, value=identity >> 32),
        _instruction(0x1D, register=0x20, offset=2),  # r0 == r2: skip two
        _instruction(0xB7, value=0),
        _instruction(0x95),
        _instruction(0xB7, value=1),
        _instruction(0x95),
    )
    return bool(answer)


def _run(*instructions: bytes) -> int:
    """The lower 32 bits of what the program returns, run by this process. BpfError when the kernel refuses."""
    program = b"".join(instructions)
    code, license_name = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    attributes = bpfsys.attributes(
        struct.pack("IIQQ", _RAW_TRACEPOINT, len(program) // 8, ctypes.addressof(code), ctypes.addressof(license_name))
    )
    descriptor = bpfsys.call(_PROG_LOAD, attributes, "program that asks where we stand")
    try:
        answer = bpfsys.attributes(struct.pack("II", descriptor, 0))
        bpfsys.call(_PROG_TEST_RUN, answer, "run of the program that asks where we stand")
        return int(struct.unpack_from("I", answer, 4)[0])
    finally:
        os.close(descriptor)


def _instruction(code: int, register: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """``struct bpf_insn``; ``register`` holds destination (low four bits) and source."""
    return struct.pack("<BBhI", code, register, offset, value)
