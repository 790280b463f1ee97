"""Starts a gate process in the red team's world: with the world's name server instead of the host's.

``python -m caisson_runner.redteam.gatehouse FOLDER FD OPTIONS``. The process is in the world's network already (it was
started from there); what names it asks, and whom, is bound over the host's files in a mount namespace of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from caisson_runner.boxes.holder import calls
from caisson_runner.redteam.outside import HOSTS, NSSWITCH, RESOLV


def main() -> None:
    """Entry point."""
    folder, descriptor, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if os.geteuid() == 0:
        calls.unshare(calls.CLONE_NEWNS)
    else:
        uid, gid = os.geteuid(), os.getegid()
        calls.unshare(calls.CLONE_NEWUSER | calls.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    calls.mount(b"none", b"/", b"", calls.MS_REC | calls.MS_PRIVATE)
    for place, text in (("resolv.conf", RESOLV), ("nsswitch.conf", NSSWITCH), ("hosts", HOSTS)):
        target = Path("/etc") / place
        if target.exists():
            source = folder / place
            source.write_text(text)
            calls.mount(os.fsencode(source), os.fsencode(target), b"", calls.MS_BIND)
    os.execv(sys.executable, [sys.executable, "-m", "caisson_gate.process", descriptor, options])  # noqa: S606


if __name__ == "__main__":
    main()
