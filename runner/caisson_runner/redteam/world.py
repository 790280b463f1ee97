"""The world outside: a network namespace of this process's own, in which every address answers from its `lo`.

What a box or its gate wrongly lets out arrives at a canary here and nowhere else: there is no other link, so nothing
can leave the machine. Canaries that belong to the host (its loopback, its abstract unix names) are made before the
world is entered; a socket stays in the namespace it was made in.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Final

from caisson_runner.boxes.holder import calls
from caisson_runner.redteam.errors import WorldRefused

_RTM_NEWLINK, _RTM_NEWROUTE = 16, 24
_REQUEST_ACK_CREATE: Final = 0x405
_LO: Final = 1
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_RTA_OIF: Final = 4


def enter() -> None:
    """Leave the host's network for a new one with `lo` alone, every address of both families local to it.

    As a plain user within a user namespace of one's own; the user stays the same, and `settle` gives the rights up
    again. For a process with one thread. WorldRefused when the host does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            calls.unshare(calls.CLONE_NEWNET)
        else:
            calls.unshare(calls.CLONE_NEWUSER | calls.CLONE_NEWNET)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                Path(f"/proc/self/{name}").write_text(text)
        _route()
    except OSError as problem:
        raise WorldRefused(
            f"no world for the red team: {problem.strerror}; it needs root or user namespaces (see: caisson-run doctor)"
        ) from problem
    if strangers := links() - {"lo"}:
        raise WorldRefused(f"the world has a link {min(strangers)}: nothing is run that could leave by it")


def settle() -> None:
    """As a plain user: give up the rights that made the world, so that boxes are made without any."""
    if os.geteuid() != 0:
        calls.drop_capabilities()
        # Without this the files of /proc/self would belong to root, and the boxes' maps could not be written.
        ctypes.CDLL(None).prctl(calls.PR_SET_DUMPABLE, 1, 0, 0, 0)


def links(pid: int | None = None) -> set[str]:
    """Names of the links in this process's network, or in that of another."""
    text = Path(f"/proc/{pid or 'self'}/net/dev").read_text()
    return {line.partition(":")[0].strip() for line in text.splitlines()[2:]}


def namespace(pid: int | None = None) -> int:
    """Which network namespace a process is in."""
    return Path(f"/proc/{pid or 'self'}/ns/net").stat().st_ino


def _route() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        _tell(netlink, _RTM_NEWLINK, struct.pack("BxHiII", socket.AF_UNSPEC, 0, _LO, 1, 1))
        out = struct.pack("HHi", 8, _RTA_OIF, _LO)
        for family in (socket.AF_INET, socket.AF_INET6):
            head = struct.pack("BBBBBBBBI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, 0)
            try:
                _tell(netlink, _RTM_NEWROUTE, head + out)
            except OSError:
                if family == socket.AF_INET:
                    raise  # a kernel without IPv6 has no IPv6 routes to fear either


def _tell(netlink: socket.socket, kind: int, body: bytes) -> None:
    netlink.send(struct.pack("IHHII", 16 + len(body), kind, _REQUEST_ACK_CREATE, 1, 0) + body)
    number = -int(struct.unpack_from("i", netlink.recv(4096), 16)[0])
    if number:
        raise OSError(number, os.strerror(number))
