"""The brake of lossless boxes: a small process of its own that freezes a box when its ring is more than half full.

It is apart from the daemon so that nothing the daemon does (a slow disk, a long call, its death) delays it, and it runs
with real-time priority: the kernel wakes it with the very record that passes the mark, on the CPU that made it, before
that task's next system call. Standard library only; the daemon starts it as ``python -I -S brake.py FD``.

Over the socket FD (SEQPACKET), all numbers little endian: one letter, slot, two numbers.

    daemon   A slot size 0  (+ descriptors: ring, cgroup.freeze, log): arm;  R slot: forget; both are answered with the
             same letter.  T slot: thawed, for the log only
    brake    F slot time used   frozen at CLOCK_BOOTTIME ``time`` with ``used`` bytes waiting
             P 0 level 0    priority: 2 real-time, 1 nice, 0 neither

It keeps no state that could be wrong: past the mark it freezes, whatever it did before, and says so; the daemon drains
and thaws. When the daemon is gone it freezes every box, writes that to their logs, and ends: the next daemon drains and
thaws.
"""

import ctypes
import mmap
import os
import select
import socket
import struct
import sys
import time

MESSAGE = struct.Struct("<cIQQ")
PRIORITY = 40
_MCL_CURRENT_FUTURE = 3
_BACKLOG_S = 0.02


class Armed:
    """One box: its ring's two counters and the file that freezes it."""

    __slots__ = ("_area", "_consumed", "_produced", "freeze", "frozen_ns", "log", "mark", "ring")

    def __init__(self, size: int, ring: int, freeze: int, log: int) -> None:
        self.ring, self.freeze, self.log = ring, freeze, log
        self.mark = size // 2
        page = mmap.PAGESIZE
        self._area = [mmap.mmap(ring, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=at * page) for at in (0, 1)]
        self._consumed, self._produced = (memoryview(area)[:8].cast("Q") for area in self._area)
        self.frozen_ns = 0

    def used(self) -> int:
        return self._produced[0] - self._consumed[0]

    def stop(self) -> None:
        """Once more does no harm. A cgroup that is gone has nothing to freeze."""
        try:
            os.pwrite(self.freeze, b"1", 0)
        except OSError:
            pass

    def close(self) -> None:
        self._consumed.release()
        self._produced.release()
        for area in self._area:
            area.close()
        for descriptor in (self.ring, self.freeze, self.log):
            os.close(descriptor)


class Brake:
    """Every armed box, by slot."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._boxes: dict[int, Armed] = {}
        self._by_ring: dict[int, int] = {}
        self._untold: dict[int, bytes] = {}
        self._epoll = select.epoll()
        self._epoll.register(channel.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Until the daemon is gone."""
        own = self._channel.fileno()
        while True:
            ready = self._epoll.poll(_BACKLOG_S if self._untold else -1)
            asked = False
            for descriptor, _ in ready:
                if descriptor == own:
                    asked = True
                else:
                    self._look(self._by_ring[descriptor])
            for slot, message in list(self._untold.items()):
                self._tell(slot, message)
            if asked and not self._obey():
                return

    def end(self) -> None:
        """Nobody drains any more: everything stands still until somebody does."""
        for box in self._boxes.values():
            box.stop()
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for box in self._boxes.values():
            try:
                os.write(box.log, b"F %d %d\n" % (box.frozen_ns or now, box.used()))
            except OSError:
                pass

    def _look(self, slot: int) -> None:
        box = self._boxes[slot]
        used = box.used()
        if used <= box.mark:
            return
        box.stop()
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        box.frozen_ns = box.frozen_ns or now
        self._tell(slot, MESSAGE.pack(b"F", slot, now, max(used, box.used())))

    def _tell(self, slot: int, message: bytes) -> None:
        """The daemon may be slow; then its messages wait, the latest for each box."""
        try:
            self._channel.send(message)
            self._untold.pop(slot, None)
        except BlockingIOError:
            self._untold[slot] = message
        except OSError:
            pass  # gone; the channel says so

    def _obey(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE.size, 3)
        except OSError:
            return False
        if len(message) != MESSAGE.size:
            return False
        letter, slot, size, _ = MESSAGE.unpack(message)
        if letter == b"A" and len(descriptors) == 3:
            box = self._boxes[slot] = Armed(size, *descriptors)
            self._by_ring[box.ring] = slot
            self._epoll.register(box.ring, select.EPOLLIN | select.EPOLLET)
            self._tell(slot, message)
            self._look(slot)
        elif letter == b"R" and slot in self._boxes:
            box = self._boxes.pop(slot)
            del self._by_ring[box.ring]
            self._epoll.unregister(box.ring)
            box.close()
            self._tell(slot, message)  # the last about this slot
        elif letter == b"T" and slot in self._boxes:
            self._boxes[slot].frozen_ns = 0
        return True


def hurry() -> int:
    """The highest priority we may have: 2 real-time, 1 nice, 0 neither. Pages stay in memory."""
    ctypes.CDLL(None).mlockall(_MCL_CURRENT_FUTURE)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        return 2
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        return 1
    except OSError:
        return 0


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(False)
    channel.send(MESSAGE.pack(b"P", 0, hurry(), 0))
    brake = Brake(channel)
    try:
        brake.run()
    finally:
        brake.end()


if __name__ == "__main__":
    main()
