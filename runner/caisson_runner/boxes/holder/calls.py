"""The system calls Python 3.11 has no name for. Each raises OSError with the call and its object in the message."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18

CLONE_INTO_CGROUP: Final = 1 << 33
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes = b"") -> None:
    """mount(2)."""
    _check(_libc.mount(source, target, kind, flags, data or None), f"mount {kind.decode() or 'bind'} {target!r}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def setns(descriptor: int, flags: int) -> None:
    """setns(2); the descriptor is a pidfd, or a namespace file."""
    _check(_libc.setns(descriptor, flags), f"setns {flags:#x}")


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one number."""
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


_SYS_CLONE3: Final = 435  # the same on every architecture
_own = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock, as a fork must


def fork_into(cgroup: int) -> int:
    """os.fork() with the child in the given version 2 cgroup from its first moment.

    Moving a process instead waits for an RCU grace period when no other was moved just before (8 to 16 ms measured).
    OSError before Linux 5.7. For processes with one thread only.
    """
    block = (ctypes.c_uint64 * 11)()
    block[0], block[4], block[10] = CLONE_INTO_CGROUP, signal.SIGCHLD, cgroup
    _own.PyOS_BeforeFork()
    child: int = _own.syscall(_SYS_CLONE3, block, ctypes.sizeof(block))
    if child == 0:
        _own.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    _own.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError(number, f"clone3 into a cgroup: {os.strerror(number)}")
    return child


def drop_capabilities() -> None:
    """Empty every capability set of this process: bounding, ambient, inheritable, permitted, effective."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the kernel's last one
    _check(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def load_seccomp(program: bytes) -> None:
    """Install an exported filter (8-byte instructions). Needs no_new_privs first."""
    block = _Program(len(program) // 8, program)
    _check(
        _libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(ctypes.byref(block), ctypes.c_void_p).value or 0, 0, 0
        ),
        "load seccomp filter",
    )
