"""What stopped a try: read from its errno, from the box's own filter and from the gate's events. Pure."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from caisson_runner.boxes import seccomp
from caisson_runner.compare.deeds import Deed

NO_ROUTE: Final = "no-route"
NO_LISTENER: Final = "no-listener"
SECCOMP: Final = "seccomp"
CAPS: Final = "caps"
MOUNT: Final = "mount"
PIDNS: Final = "pidns"
USERNS: Final = "userns"
KERNEL: Final = "kernel"
SILENCE: Final = "silence"
IPCNS: Final = "ipcns"
INERT: Final = "inert"
WORDS: Final = (
    NO_ROUTE, NO_LISTENER, SECCOMP, CAPS, MOUNT, PIDNS, USERNS, IPCNS, KERNEL, SILENCE, INERT, "passes",
)  # fmt: skip
"""Besides ``gate:<reason>``. ``inert``: what was left stays data; ``passes``: the gate lets it by, on purpose."""

_UNREACHABLE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN})
_CLOSED: Final = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})
_ABSENT: Final = frozenset({errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EOPNOTSUPP})
_WAITED: Final = frozenset({errno.EAGAIN, errno.ETIMEDOUT, errno.EINPROGRESS})
_AF_UNIX: Final = 1


def blockers(deeds: Iterable[Deed], allow: Collection[str] = ()) -> list[str]:
    """What stopped each deed that failed, each once, in the order of the deeds."""
    return list(dict.fromkeys(word for deed in deeds if (word := blocker(deed, allow))))


def blocker(deed: Deed, allow: Collection[str] = ()) -> str:
    """What stopped one deed; empty for one that succeeded."""
    if not deed.errno:
        return ""
    refused = seccomp.answer(deed.op, deed.family, deed.type, deed.protocol, allow)
    if (refused is not None and refused == deed.errno) or deed.errno == errno.ENOSYS:
        return SECCOMP  # also a call the filter allows, when it came under another numbering
    if deed.event in ("connect", "socket"):
        return _network(deed)
    if deed.event in ("open", "change"):
        return MOUNT
    if deed.errno == errno.ESRCH:
        return PIDNS
    return CAPS if deed.errno in (errno.EPERM, errno.EACCES) else KERNEL


def _network(deed: Deed) -> str:
    if deed.addr is not None and deed.addr[:2] == _AF_UNIX.to_bytes(2, "little"):
        named = deed.addr[2:3] != b"\0"
        return MOUNT if named else NO_LISTENER
    for numbers, word in ((_UNREACHABLE, NO_ROUTE), (_CLOSED, NO_LISTENER), (_ABSENT, KERNEL), (_WAITED, SILENCE)):
        if deed.errno in numbers:
            return word
    return CAPS if deed.errno in (errno.EPERM, errno.EACCES) else KERNEL


def of_saw(route: str, saw: Mapping[str, object]) -> list[str]:
    """For routes whose tries are no system calls that fail: what the answers show. Never empty."""
    number = saw.get("answer", saw.get("errno"))
    if route.startswith("local-shared-ipc"):
        return [IPCNS if number else MOUNT]
    if saw.get("links") == ["lo"]:
        return [NO_ROUTE]
    for numbers, word in (
        (_CLOSED, NO_LISTENER), (_WAITED, SILENCE), ({errno.ENOSYS}, SECCOMP), ({errno.ESRCH}, PIDNS),
        ({errno.EPERM, errno.EACCES}, CAPS),
    ):  # fmt: skip
        if number in numbers:
            return [word]
    return [KERNEL if number else INERT]
