"""The keeper: one process per runner that forks a holder for each box. Run as a script by `boxes.keeper`.

It imports little and holds nothing, so that its fork is cheap; the runner itself, with all it has loaded, never forks.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from caisson_runner.boxes.holder import wire
from caisson_runner.boxes.holder.box import Holder, enter

# The init of every box: 168 bytes of x86-64 that nobody may trace. They say "r" on descriptor 1 (or end), name
# themselves, let the kernel reap orphans (SIGCHLD ignored), close every descriptor and sleep. Executed from a memfd, so
# that no file of the box, not even its loader or /etc/ld.so.preload, runs outside the box's cgroup.
# Source: docs/decisions/0002-box-init.md.
INIT = bytes.fromhex(
    "7f454c4602010100000000000000000002003e00010000007800400000000000400000000000000000000000000000000000000040003800"
    "0100000000000000010000000500000000000000000000000000400000000000000040000000000020010000000000002001000000000000"
    "0010000000000000b89d000000bf0400000031f60f05b801000000bf01000000488d3560000000ba010000000f054883f8017547b89d0000"
    "00bf0f000000488d35430000000f05b80d000000bf11000000488d353800000031d241ba080000000f05b8b401000031ffbeffffffff31d2"
    "0f05b8220000000f05ebf7b8e7000000bf010000000f0572696e6974000f1f00010000000000000000000000000000000000000000000000"
    "0000000000000000"
)


READY = 2
"""Holders that wait for the next boxes."""


def init_program() -> int:
    """A descriptor of the init's file, open for reading only (a file open for writing cannot be executed)."""
    writable = os.memfd_create("init", os.MFD_CLOEXEC)
    os.write(writable, INIT)
    descriptor = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(writable)
    return descriptor


def keep(control: socket.socket, owner: int | None) -> None:
    """Keep one holder ready on the control socket; whoever is waiting there takes the next request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    init = init_program()
    received = wire.receive_packet(control)
    if received is None:
        return
    with open(received[1][0], "rb") as source:
        program = source.read()
    waiting: dict[int, None] = {}
    poll = select.poll()
    poll.register(control, select.POLLHUP)
    while True:
        while len(waiting) < READY:
            taken, taken_in = os.pipe()
            if not os.fork():
                _hold(control, taken_in, Holder(owner, program, init))
            os.close(taken_in)
            waiting[taken] = None
            poll.register(taken, select.POLLIN | select.POLLHUP)
        for descriptor, _ in poll.poll():
            if descriptor == control.fileno():
                return  # the runner is gone; so will the waiting ones be
            poll.unregister(descriptor)
            os.close(descriptor)
            del waiting[descriptor]


def _hold(control: socket.socket, taken: int, holder: Holder) -> None:
    holder.prepare()
    received = wire.receive_packet(control)
    if received is None:
        os._exit(0)
    control.close()
    request, descriptors = received
    box = socket.socket(fileno=descriptors[0])
    # The next one is made when this box stands, not while it needs the processor.
    holder.run(box, request, descriptors[1] if len(descriptors) > 1 else None, lambda: os.close(taken))


def enter_below_a_tracer() -> None:
    """`box.enter` as a program of its own: descriptors 10 to 14 are gate, report, init, filter and request."""
    with open(13, "rb") as source:
        program = source.read()
    with open(14, "rb") as source:
        size = int.from_bytes(source.read(wire.HEADER), "little")
        request = wire.decode(source.read(size))
    for descriptor in (10, 11, 12):
        os.set_inheritable(descriptor, False)
    enter(request, (0, 1, 2), 10, 11, 12, program)


if __name__ == "__main__":
    if sys.argv[1] == "enter":
        enter_below_a_tracer()
    else:
        try:
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("500")  # a host short of memory ends boxes first
        except OSError:
            pass
        keep(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]) if len(sys.argv) > 3 else None)
