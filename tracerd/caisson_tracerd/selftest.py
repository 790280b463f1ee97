"""Ready only after proof: a known child does known things in a box of its own, and exactly those are on record.

Without it a program that compiles and loads against wrong types would record garbage without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_proto.record import ChangeOp, Flag, Kind, Record, decode, strip_ring

from caisson_tracerd import depth, process
from caisson_tracerd.cgroup import Limits
from caisson_tracerd.errors import SelfTestError, TracerdError
from caisson_tracerd.registry import Registry

TIMEOUT_S: Final = 60.0
_RING_BYTES: Final = 1 << 18
_CHILD_EXIT: Final = 7
_FOLDER: Final = "selftest-"

# Prints nothing it does not know for sure; runs with no imports between the gate and the exec, and with few before.
_CHILD: Final = """
import _socket, ctypes, os, sys
libc = ctypes.PyDLL(None)  # os.fork() opens /proc/self/stat from Python 3.12 on
folder = sys.argv[1]
link, absent = folder + "/link", folder + "/absent"
probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
sys.stdout.write("ready\\n"); sys.stdout.flush()
if sys.stdin.readline() != "go\\n":
    os._exit(0)
os.open(link, os.O_RDONLY)
move = lambda: os.rename(absent, absent + "2")
run = lambda: os.execv(absent, ["x"])
for wrong in (lambda: os.open(absent, os.O_RDONLY), move, lambda: probe.connect(absent), run):
    try:
        wrong()
    except OSError:
        pass
child = libc.fork()
if child == 0:
    libc._exit(7)
os.waitpid(child, 0)
sys.stdout.write(str(child) + "\\n"); sys.stdout.flush()
os.execv("/proc/self/exe", [sys.executable, "-I", "-S", "-c", ""])
"""


@dataclass(frozen=True, slots=True)
class KnownChild:
    """The process that will do known things when it is told to, below its folder."""

    folder: str
    target: Path
    process: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def known_child(run_dir: Path) -> AsyncIterator[KnownChild]:
    """Started ahead: it becomes ready while programs are loaded and the daemon's modules are read.

    Its folder lies in the daemon's own, where a start also takes away what a killed one left.
    """
    for left in run_dir.glob(f"{_FOLDER}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=run_dir) as folder:
        target = Path(folder, "target")
        target.write_text("x")
        Path(folder, "link").symlink_to(target)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _CHILD, folder, stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            yield KnownChild(folder, target, process)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def run(registry: Registry, known: KnownChild) -> None:
    """Raise SelfTestError with one line unless the record is right."""
    box_id = f"selftest-{os.getpid()}"
    try:
        await registry.create(0, box_id, Limits(), _RING_BYTES)
        try:
            child, start_ns = await asyncio.wait_for(_play(registry, box_id, known.process), TIMEOUT_S)
            box = await registry.seal(0, box_id)
            journal = b"".join([data async for _, data in box.journal.read(0, False)])
            counts = {count.kind: count for count in box.counts()}
        finally:
            await registry.drop(0, box_id)
    except TimeoutError:
        raise SelfTestError(f"self-test: the child did not finish within {TIMEOUT_S:g} s") from None
    except (TracerdError, OSError) as problem:
        raise SelfTestError(f"self-test could not be run: {problem}") from problem
    try:
        canonical, rest = strip_ring(journal)
        if rest:
            raise ValueError(f"{len(rest)} bytes left over")
        records = list(decode(canonical))
    except ValueError as problem:
        raise SelfTestError(f"self-test: the record cannot be read: {problem}") from problem
    own = known.process.pid
    if depth.own_pid() not in (os.getpid(), None):
        own, child = _numbers(records)
    judge(records, Expected(own, start_ns, child, known.folder, identity(known.target)))
    for kind in Kind:
        count = counts[kind.name.lower()]
        if count.seen != count.delivered or count.delivered != sum(record.kind == kind for record in records):
            raise SelfTestError(f"self-test: the counters of {count.kind} do not fit the record: {count}")


class Expected:
    """What the child really did."""

    def __init__(self, pid: int, start_ns: int, child: int, folder: str, target: tuple[int, int]) -> None:
        self.pid = pid
        self.start_ns = start_ns
        self.child = child
        self.folder = os.fsencode(folder)
        self.target = target

    def program(self) -> dict[str, Any]:
        """What the last exec must say."""
        return {
            "resolved": os.fsencode(Path(sys.executable).resolve()),
            "program": identity(Path(sys.executable)),
            "argv": tuple(os.fsencode(word) for word in (sys.executable, "-I", "-S", "-c", "")),
            "cwd": os.fsencode(Path.cwd()),
        }


def identity(path: Path) -> tuple[int, int]:
    """Device and inode as the kernel has them. stat(2) gives the files of an overlay devices that exist nowhere else,
    so the device is taken from the mount."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        inode = os.fstat(descriptor).st_ino
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    finally:
        os.close(descriptor)
    mount = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        number, _, device = line.split(" ")[:3]
        if number == mount:
            major, minor = device.split(":")
            return os.makedev(int(major), int(minor)), inode
    raise SelfTestError(f"self-test: the mount of {path} is not listed")


def _numbers(records: list[Record]) -> tuple[int, int]:
    """In a pid namespace the record has the kernel's numbers and we have others: the child is known by its start."""
    return next(((record.pid, record.args[0]) for record in records if record.kind == Kind.FORK), (0, 0))


def judge(records: list[Record], expected: Expected) -> None:
    """Compare record by record; SelfTestError names the first difference."""
    own, child = expected.pid, expected.child
    real = os.fsencode(Path(os.fsdecode(expected.folder)).resolve())
    absent = expected.folder + b"/absent"
    wanted: list[tuple[Kind, int, dict[str, Any]]] = [
        (
            Kind.OPEN,
            own,
            {
                "given": expected.folder + b"/link",
                "resolved": real + b"/target",
                "error": 0,
                "object": expected.target,
            },
        ),
        (Kind.OPEN, own, {"given": absent, "resolved": None, "error": 2}),
        (Kind.CHANGE, own, {"given": absent, "new": absent + b"2", "operation": ChangeOp.RENAME, "error": 2}),
        (Kind.CONNECT, own, {"error": 2, "family": 1, "addr": b"\1\0" + absent + b"\0"}),
        (Kind.EXEC, own, {"given": absent, "error": 2, "argv": (b"x",), "cwd": os.fsencode(Path.cwd())}),
        (Kind.FORK, own, {"child": child, "error": 0}),
        (Kind.EXIT, child, {"code": _CHILD_EXIT}),
        (Kind.EXEC, own, {"given": b"/proc/self/exe", "error": 0, **expected.program()}),
        (Kind.EXIT, own, {"code": 0}),
    ]
    # What the last program does by itself (it opens its libraries) is its business, not the test's.
    last = next((at for at, record in enumerate(records) if record.kind == Kind.EXEC and not record.error), None)
    whole = (Kind.FORK, Kind.EXEC, Kind.EXIT)
    kept = [record for at, record in enumerate(records) if last is None or at <= last or record.kind in whole]
    for number, (kind, pid, fields) in enumerate(wanted):
        if number >= len(kept):
            raise SelfTestError(f"self-test: {kind.name.lower()} of process {pid} is not on record")
        record = kept[number]
        seen = {**_view(record), "kind": record.kind, "pid": record.pid}
        for name, value in {"kind": kind, "pid": pid, **fields}.items():
            if seen[name] != value:
                raise SelfTestError(
                    f"self-test: record {number + 1} ({kind.name.lower()}): {name} is {seen[name]!r}, truly {value!r}"
                )
        if pid == own and record.start_ns // 10_000_000 * 10_000_000 != expected.start_ns:
            raise SelfTestError(f"self-test: start time {record.start_ns} ns, truly {expected.start_ns} ns")
    if len(kept) > len(wanted):
        raise SelfTestError(f"self-test: {len(kept) - len(wanted)} records more than the child did")


def _view(record: Record) -> dict[str, Any]:
    """The fields the test speaks of, under one name for each meaning."""
    return {
        "given": record.given,
        "new": record.new,
        "operation": record.args[0],
        "resolved": record.resolved,
        "error": record.error,
        "object": (record.args[3], record.args[4]),
        "program": (record.args[0], record.args[1]),
        "argv": record.argv,
        "cwd": record.cwd,
        "family": record.args[0],
        "addr": record.addr,
        "child": record.args[0],
        "code": record.args[0],
        "toctou": bool(record.flags & Flag.TOCTOU),
    }


async def _play(registry: Registry, box_id: str, child: asyncio.subprocess.Process) -> tuple[int, int]:
    """(the pid of the child's child, the child's start)."""
    assert child.stdin is not None
    assert child.stdout is not None
    if await child.stdout.readline() != b"ready\n":
        raise SelfTestError("self-test: the child did not start")
    start_ns = process.look(child.pid).start_ns
    await registry.admit(0, box_id, child.pid)
    child.stdin.write(b"go\n")
    told = await child.stdout.readline()
    await child.wait()
    if child.returncode or not told.strip().isdigit():
        raise SelfTestError(f"self-test: the child ended with {child.returncode}")
    return int(told), start_ns
