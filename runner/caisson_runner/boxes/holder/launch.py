"""The last steps of a process on its way into a box: join, wait at the gate, give up every right, exec.

Runs in a child of the holder (or under a tracer, see `main.enter`). Until the exec the process executes this file and
nothing of the box's; it is not dumpable, so nobody in the box can trace it or read its memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
from typing import Any, Final, NoReturn

from caisson_runner.boxes.holder import calls

NAMESPACES: Final = (
    calls.CLONE_NEWUSER | calls.CLONE_NEWNS | calls.CLONE_NEWNET | calls.CLONE_NEWIPC | calls.CLONE_NEWUTS
)
KEEP: Final = 10
"""First descriptor of ours in a launched process; below lie stdin, stdout and stderr only."""


def namespaces_of(init: int) -> int:
    """`NAMESPACES` as this process can join them: a container may share its user namespace with the host."""
    same = os.readlink(f"/proc/{init}/ns/user") == os.readlink("/proc/self/ns/user")
    return NAMESPACES & ~calls.CLONE_NEWUSER if same else NAMESPACES


def join(init: int, namespaces: int) -> None:
    """Enter every namespace of the box but the pid namespace (which the parent joined for its children)."""
    calls.setns(init, namespaces)
    if not namespaces & calls.CLONE_NEWUSER:
        os.setgroups([])  # (bubblewrap's user namespace forbids it; the holder has none to begin with)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    calls.prctl(calls.PR_SET_DUMPABLE, 0)


def give_up(program: bytes) -> None:
    """No capabilities, no new privileges, the box's filter: from here on, what the box itself may do."""
    calls.drop_capabilities()
    calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
    calls.load_seccomp(program)


def arrange(wanted: dict[int, int]) -> None:
    """Put descriptors at their places (place: descriptor) and close every other one."""
    high = {place: fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 300) for place, descriptor in wanted.items()}
    for place, descriptor in high.items():
        os.dup2(descriptor, place, inheritable=place <= 2)
    start = 0
    for place in (*sorted(wanted), 1 << 20):
        if start < place:  # an empty range would close everything
            os.closerange(start, place)
        start = place + 1


def limit(limits: dict[str, int]) -> None:
    """Resource limits of one process; a core limit of 1 also keeps a host's core handler from being fed."""
    table = {
        "core": (resource.RLIMIT_CORE, 1),
        "files": (resource.RLIMIT_NOFILE, limits.get("files", 0)),
        "processes": (resource.RLIMIT_NPROC, limits.get("processes", 0)),
        "data": (resource.RLIMIT_DATA, limits.get("data", 0)),
        "file_size": (resource.RLIMIT_FSIZE, limits.get("file_size", 0)),
    }
    for number, value in table.values():
        if value:
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.setrlimit(number, (value, value))


def default_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ; a command must not inherit that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def launch(
    spec: dict[str, Any], init: int, std: tuple[int, int, int], gate: int, report: int, program: bytes
) -> NoReturn:
    """Become the command. ``report`` gets a line when the process waits at the gate, and one when it cannot start."""
    try:
        if spec["cgroup"] is not None:
            for path in spec["cgroup"]["v1"]:
                _join_cgroup(path)
        arrange({0: std[0], 1: std[1], 2: std[2], KEEP: gate, KEEP + 1: report, KEEP + 2: init})
        join(KEEP + 2, spec["namespaces"])
        os.close(KEEP + 2)
        os.setsid()
        os.umask(0o022)
        limit(spec["rlimits"])
        default_signals()
        os.write(KEEP + 1, b"r\n")
        if not os.read(KEEP, 1):
            os._exit(1)
        os.close(KEEP)
        calls.unshare(calls.CLONE_NEWCGROUP)
        give_up(program)
        _execute(spec)
    except BaseException as problem:
        # Also a MemoryError or an OSError from any step above: the runner must learn why nothing ran.
        try:
            os.write(KEEP + 1, f"e 126 {type(problem).__name__}: {problem}".encode()[:900] + b"\n")
        finally:
            os._exit(126)


def _join_cgroup(path: str) -> None:
    """Move this process, by writing "0": a thread that moves itself alone takes no lock the whole host shares."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def require_file(descriptor: int) -> None:
    """OSError unless it is a regular file: reading from a pipe or device of a box could wait for ever."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EISDIR, "not a regular file")


def _execute(spec: dict[str, Any]) -> NoReturn:
    argv = [os.fsencode(word) for word in spec["argv"]]
    environment = {os.fsencode(key): os.fsencode(value) for key, value in spec["env"].items()}
    try:
        os.chdir(os.fsencode(spec["cwd"]))
    except OSError as problem:
        _refuse(127, b"working directory " + os.fsencode(spec["cwd"]), problem)
    places = [argv[0]]
    if b"/" not in argv[0]:
        places = [folder + b"/" + argv[0] for folder in environment.get(b"PATH", b"").split(b":") if folder]
        places = [place for place in places if os.access(place, os.X_OK)] or places[:1]
    last = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in places:
        try:
            os.execve(place, argv, environment)
        except OSError as problem:
            last = problem
    _refuse(127 if last.errno == errno.ENOENT else 126, argv[0], last)


def _refuse(code: int, what: bytes, problem: OSError) -> NoReturn:
    os.write(KEEP + 1, b"e %d %s: %s\n" % (code, what[:400], str(problem.strerror).encode()))
    os._exit(code)
