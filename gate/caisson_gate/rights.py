"""What the gate process may do on the host: as little as can be, since what it reads is hostile.

Started by root it becomes a user of its own that owns nothing but the folders it is given. It keeps one capability, to
read files and enter folders whoever's they are: certificates, recordings to replay, and Python's own modules, which
are loaded when they are first needed and may lie where only root can look. It can write nothing of others', and signal,
trace and configure nothing.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

GATE_UID: Final = 508_950
"""Beside the uid of every box (508949); nobody's else."""

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 4, 8, 38, 24
_DAC_READ_SEARCH: Final = 2
_VERSION_3: Final = 0x20080522


def own_uid() -> int | None:
    """The uid that a gate started by this process will have; None where it stays this process's own."""
    return GATE_UID if os.geteuid() == 0 and _mapped(GATE_UID) else None


def _mapped(uid: int) -> bool:
    """Not so in a user namespace that has its root alone."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= uid < inside + count:
            return True
    return False


def give_up() -> None:
    """Become `own_uid`, with the one capability; for a plain user only close the ways to new rights."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    uid = own_uid()
    if uid is not None:
        for capability in range(64):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
                break  # past the kernel's last one
        call("keep capabilities", libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        bits = 1 << _DAC_READ_SEARCH
        call("capset", libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)))
    call("no new privileges", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    call("not dumpable", libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
