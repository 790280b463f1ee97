"""One box: its holder process, from the first mount to the last kill.

Every request of the runner is done by a child forked for it, with pipes the runner passed along, so the holder itself
only forks and waits and can always be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from caisson_runner.boxes.holder import calls, launch, network, tree, wire
from caisson_runner.boxes.holder.room import Room, RoomError

BOOT_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 10.0


class Holder:
    """Serves one box until it is dropped or the runner is gone. Made in advance: `prepare`, then `run`."""

    def __init__(self, owner: int | None, program: bytes, init_program: int) -> None:
        self._program = program
        self._init_program = init_program
        self._room = Room(owner)
        self._refused: RoomError | None = None
        self._init = -1
        self._init_pid = 0
        self._namespaces = launch.NAMESPACES
        self._control: socket.socket
        self._spec: dict[str, Any] = {}

    def prepare(self) -> None:
        """What can be done before the box is asked for. A refusal is told when it is."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
        try:
            self._room.separate()
        except RoomError as problem:
            self._refused = problem

    def run(
        self, control: socket.socket, spec: dict[str, Any], state: int | None, stands: Callable[[], None]
    ) -> NoReturn:
        """Build, boot, serve; never returns. ``stands`` is called when the box is up."""
        self._control = control
        self._spec = spec
        runner_left = False
        try:
            if self._refused is not None:
                raise self._refused
            if "adopt" in spec:
                self._adopt(spec["adopt"])
            else:
                self._room.build(spec, self._unpack(state) if state is not None else None)
                calls.prctl(calls.PR_SET_DUMPABLE, 0)
                self._boot()
            self._say({"up": self._init_pid, "on_disk": self._room.on_disk})
            stands()
            runner_left = self._serve()
        except RoomError as problem:
            self._say({"failed": problem.stage, "errno": problem.number, "detail": str(problem)})
        except Exception as problem:
            self._say({"failed": "holder", "errno": 0, "detail": f"{type(problem).__name__}: {problem}"})
        finally:
            self._end()
            if runner_left:
                self._clean()
            os._exit(0)

    def _say(self, message: wire.Message) -> None:
        try:
            wire.send(self._control, message)
        except OSError:
            pass  # the runner is gone; the next read says so

    def _adopt(self, container: dict[str, Any]) -> None:
        """Take over an init that another made, with its root and its writable layer: a container's."""
        calls.prctl(calls.PR_SET_DUMPABLE, 0)
        self._init_pid = container["init"]
        try:
            self._init = os.pidfd_open(self._init_pid)
            self._namespaces = launch.namespaces_of(self._init_pid)
        except OSError as problem:
            raise RoomError("container's init", problem) from problem
        self._room.adopt(os.fsencode(container["upper"]), [os.fsencode(path) for path in container["hidden"]])

    def _unpack(self, state: int) -> Callable[[int], None]:
        def fill(upper: int) -> None:
            from caisson_runner.boxes.holder import state as states

            without = [os.fsencode(path).strip(b"/") for path in self._spec["restore"]]
            try:
                with open(state, "rb") as stream:
                    states.unpack(stream, upper, self._room.rootless, self._room.owner, without)
            except states.PROBLEMS as problem:
                raise RoomError(f"unpack state: {problem}", OSError(22, "invalid")) from problem
            except OSError as problem:
                raise RoomError("unpack state", problem) from problem

        return fill

    def _boot(self) -> None:
        """Start bubblewrap; it makes the namespaces and becomes the box's init."""
        ready, ready_in = os.pipe()
        info, info_in = os.pipe()
        errors, errors_in = os.pipe()
        self._spawn_bubblewrap(ready_in, info_in, errors_in)
        for descriptor in (ready_in, info_in, errors_in):
            os.close(descriptor)
        text = self._await_ready(ready, errors)
        described = os.read(info, 4096)
        for descriptor in (ready, info, errors):
            os.close(descriptor)
        if text is not None:
            raise RoomError(f"bubblewrap: {text or 'ended without a word'}", OSError(1, "refused"))
        self._init_pid = int(json.loads(described)["child-pid"])
        self._init = os.pidfd_open(self._init_pid)

    def _await_ready(self, ready: int, errors: int) -> str | None:
        """None when the init is there, else what bubblewrap said."""
        poll = select.poll()
        poll.register(ready, select.POLLIN | select.POLLHUP)
        if not poll.poll(BOOT_TIMEOUT_S * 1000):
            return f"not ready after {BOOT_TIMEOUT_S:g} s"
        if os.read(ready, 1) == b"r":
            return None
        return os.read(errors, 2000).decode("utf-8", "replace").strip()

    def _spawn_bubblewrap(self, ready: int, info: int, errors: int) -> None:
        """By posix_spawn, which copies no memory: half the time of a fork."""
        filter_out, filter_in = os.pipe()
        os.write(filter_in, self._program)  # a filter fits into a pipe
        os.close(filter_in)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        places = (nothing, ready, errors, self._init_program, info, filter_out)
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in places]
        owner = self._room.owner
        try:
            if owner is not None:  # the saved id stays 0 here, and is the owner's after the exec
                os.setresgid(owner, owner, 0)
                os.setresuid(owner, owner, 0)
            os.posix_spawn(
                self._spec["bwrap"],
                self._arguments(),
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, place) for place, descriptor in enumerate(high)],
                setsigdef=[signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ],
            )
        finally:
            if owner is not None:
                os.setresuid(0, 0, 0)
                os.setresgid(0, 0, 0)
            for descriptor in (*high, nothing, filter_out):
                os.close(descriptor)

    def _arguments(self) -> list[bytes]:
        room = self._room
        words: list[bytes] = [b"bwrap", b"--unshare-user", b"--unshare-ipc", b"--unshare-pid", b"--unshare-net"]
        words += [b"--unshare-uts", b"--hostname", b"box", b"--uid", b"0", b"--gid", b"0"]
        words += [b"--bind", room.root, b"/"]
        if self._spec["host_usr"]:
            words += [b"--ro-bind", room.usr, b"/usr", b"--bind", room.root + b"/usr/local", b"/usr/local"]
        words += [b"--proc", b"/proc", b"--ro-bind", b"/proc/sys", b"/proc/sys"]
        for secret in (b"/proc/keys", b"/proc/key-users", b"/proc/kallsyms"):  # the last: names of BPF programs
            if os.path.exists(secret):
                words += [b"--ro-bind", b"/dev/null", secret]
        words += [b"--dev", b"/dev", b"--bind", room.place + b"/shm", b"/dev/shm", b"--remount-ro", b"/dev"]
        for source, target in room.binds:
            words += [b"--ro-bind", source, target]
        words += [b"--cap-drop", b"ALL", b"--new-session", b"--die-with-parent", b"--as-pid-1", b"--chdir", b"/"]
        return [*words, b"--info-fd", b"4", b"--seccomp", b"5", b"/proc/self/fd/3"]

    def _serve(self) -> bool:
        """Until the runner drops the box (False) or is gone (True)."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN | select.POLLHUP)
        poll.register(self._init, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._init:
                    poll.unregister(self._init)
                    self._say({"gone": True})
                    continue
                received = wire.receive(self._control)
                if received is None:
                    return True
                request, descriptors = received
                if request["op"] == "drop":
                    return False
                if request["op"] == "cleanup":
                    self._spec["cleanup"] = request["paths"]
                    continue
                if not os.fork():
                    try:
                        self._control.close()
                        calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
                        self._do(request, descriptors)
                    finally:
                        os._exit(0)
                for inherited in descriptors:
                    os.close(inherited)

    def _do(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """In a child of its own: one request. The first descriptor gets the answer."""
        operation = request["op"]
        if operation == "launch":
            report, stdin, stdout, stderr, gate = descriptors
            request["namespaces"] = self._namespaces
            enter(request, (stdin, stdout, stderr), gate, report, self._init, self._program)
            return
        report = descriptors[0]
        try:
            if operation == "signal":
                self._inside(lambda _: _signal_all(request["number"]))
            elif operation == "pack":
                self._pack(request, descriptors[1])
            elif operation == "put":
                self._inside(lambda data: _put(request, data), descriptors[1])
            elif operation == "get":
                self._inside(lambda out: _get(request, out), descriptors[1])
            elif operation == "listen":
                self._listen(request["ports"], descriptors[1])
            os.write(report, b"ok")
        except Exception as problem:
            number = problem.errno if isinstance(problem, OSError) else getattr(problem, "number", 0)
            os.write(report, json.dumps({"errno": number, "detail": str(problem)[:500]}).encode())

    def _inside(self, action: Callable[[int], None], pipe: int | None = None) -> None:
        """Run the action in a process of the box's pid namespace; its error comes back as an OSError.

        With a pipe the process has the rights of the box and no other descriptor, and the action gets the pipe.
        """
        problem, problem_in = os.pipe()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        calls.setns(self._init, calls.CLONE_NEWPID)
        child = os.fork()
        if not child:
            try:
                if pipe is not None:
                    launch.arrange({3: pipe, 4: self._init, 5: problem_in})
                    pipe, problem_in = 3, 5
                    launch.join(4, self._namespaces)
                    launch.give_up(self._program)
                    os.umask(0)
                action(-1 if pipe is None else pipe)
            except OSError as refusal:
                os.write(problem_in, b"%d" % (refusal.errno or 5))
            except BaseException:
                os.write(problem_in, b"5")
            finally:
                os._exit(0)
        os.close(problem_in)
        os.waitpid(child, 0)
        if number := os.read(problem, 16):
            raise OSError(int(number), os.strerror(int(number)))

    def _listen(self, ports: list[int], out: int) -> None:
        """Make the gate's sockets in the box's network and pass them out, one message each."""
        calls.setns(self._init, self._namespaces & (calls.CLONE_NEWUSER | calls.CLONE_NEWNET))
        with socket.socket(fileno=out) as way:
            for about, made in network.make(ports):
                with made:
                    wire.send(way, about, (made.fileno(),))

    def _pack(self, request: dict[str, Any], out: int) -> None:
        from caisson_runner.boxes.holder import state as states

        upper = os.open(self._room.upper, os.O_RDONLY | os.O_DIRECTORY)
        without = [target.strip(b"/") for _, target in self._room.binds]
        with open(out, "wb") as stream:
            states.pack(upper, stream, self._room.rootless, request["limit"], without)

    def _end(self) -> None:
        """Kill the init, and so every process of the box, and wait until all are gone."""
        if self._init < 0:
            return
        try:
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
        except ProcessLookupError:
            return
        poll = select.poll()
        poll.register(self._init, select.POLLIN)
        poll.poll(_END_TIMEOUT_S * 1000)

    def _clean(self) -> None:
        """The runner cannot any more: take away its cgroups and its folder for this box."""
        deadline = time.monotonic() + 5
        for directory in self._spec["cleanup"]:
            while time.monotonic() < deadline:
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break
            try:
                os.rmdir(os.path.dirname(directory))  # empty, when this was the last box below it
            except OSError:
                pass
        tree.remove(self._spec["disk"])


def enter(
    request: dict[str, Any], std: tuple[int, int, int], gate: int, report: int, init: int, program: bytes
) -> None:
    """Start a command in the box and tell ``report``: lines ``p PID``, ``r``, ``e CODE TEXT``, ``x STATUS``.

    With ``wrap`` the same is done by a new process below the given argument prefix (a tracer).
    """
    if request.get("wrap"):
        _enter_below(request, std, gate, report, init, program)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    calls.setns(init, calls.CLONE_NEWPID)
    child = _fork(request)
    if not child:
        launch.launch(request, init, std, gate, report, program)
    os.write(report, b"p %d\n" % child)
    for descriptor in (*std, gate):
        os.close(descriptor)
    _, status = os.waitpid(child, 0)
    os.write(report, b"x %d\n" % status)


def _fork(request: dict[str, Any]) -> int:
    """Fork into the box's cgroup, when the engine made one: version 2 by the fork itself, version 1 by the child."""
    cgroup = request["cgroup"]
    if cgroup is None:
        return os.fork()
    descriptor = os.open(cgroup["v2"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        return calls.fork_into(descriptor)
    except OSError:
        cgroup["v1"].append(cgroup["v2"] + "/cgroup.procs")
        return os.fork()
    finally:
        os.close(descriptor)


def _enter_below(
    request: dict[str, Any], std: tuple[int, int, int], gate: int, report: int, init: int, program: bytes
) -> NoReturn:
    """Run `main.enter` under the wrap's program, with this request in a pipe."""
    inner = {key: value for key, value in request.items() if key not in ("wrap", "python")}
    body = os.memfd_create("request", 0)
    os.write(body, program)
    words = wire.encode(inner)
    ask = os.memfd_create("words", 0)
    os.write(ask, words)
    for descriptor in (body, ask):
        os.lseek(descriptor, 0, os.SEEK_SET)
    launch.arrange({0: std[0], 1: std[1], 2: std[2], 10: gate, 11: report, 12: init, 13: body, 14: ask})
    for descriptor in range(10, 15):
        os.set_inheritable(descriptor, True)
    launch.default_signals()
    argv = [*request["wrap"], *request["python"], "enter"]
    try:
        os.execvpe(argv[0], argv, {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"})
    except OSError as problem:
        os.write(11, f"e 126 {argv[0]}: {problem.strerror}\n".encode())
    os._exit(126)


def _signal_all(number: int) -> None:
    """Runs in the box's pid namespace: reaches every process there but the init and this one, at one stroke."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def _put(request: dict[str, Any], data: int) -> None:
    """With the rights of the box: write a file, folders above it included."""
    path = os.fsencode(request["path"])
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    launch.require_file(descriptor)
    while chunk := os.read(data, 1 << 16):
        _write(descriptor, chunk)
    os.fchmod(descriptor, request["mode"])


def _get(request: dict[str, Any], out: int) -> None:
    """With the rights of the box: read a regular file, one byte more than the limit at most."""
    descriptor = os.open(os.fsencode(request["path"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    launch.require_file(descriptor)
    left = request["limit"] + 1
    while left and (chunk := os.read(descriptor, min(left, 1 << 16))):
        left -= len(chunk)
        _write(out, chunk)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
