"""The gate process: one for each `caisson-run`, serving its boxes until the runner is gone.

Run as ``python -m caisson_gate.process FD OPTIONS``: FD is the control socket, OPTIONS a JSON object. It holds every
way out of every box. When it ends, by whatever cause, the kernel closes its sockets, and each box has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol

from caisson_gate import wire
from caisson_gate.credentials import credential_names, placeholder
from caisson_gate.document import toml
from caisson_gate.events import MAX_JOURNAL, Journal
from caisson_gate.listeners import Listeners
from caisson_gate.load import bundle
from caisson_gate.policy import Policy, parse
from caisson_gate.pool import Pool
from caisson_gate.ports import ports
from caisson_gate.resolve import Resolver, parse_pin
from caisson_gate.rights import give_up
from caisson_gate.served import Served

JOURNAL_BYTES = MAX_JOURNAL
MOST_LINES: Final = 1000
GRACE_S: Final = 10.0
"""How long after the runner's end the gate may still write; then it ends by force, whatever it is doing."""


class HttpProxy(Protocol):
    """`caisson_gate.proxy.Proxy`, as far as this module needs it."""

    async def start(self) -> None: ...
    async def opened(self, served: Served) -> None: ...
    async def serve(self, arrival: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...
    async def closed(self, box: str) -> None: ...
    async def stop(self) -> None: ...


class Gate:
    """Every box of one runner."""

    def __init__(self, control: socket.socket, options: dict[str, Any]) -> None:
        control.setblocking(False)
        self._control = control
        self._folder = Path(options["folder"])
        pins = {name: (address, port) for name, address, port in map(parse_pin, options["resolve"])}
        self._resolver = Resolver(pins)
        self._upstream_ca = Path(options["upstream_ca"]) if options.get("upstream_ca") else None
        self._run = str(options["run"])
        self._policies: dict[tuple[bytes, str], Policy] = {}
        self._boxes: dict[str, Served] = {}
        self._listeners: dict[str, Listeners] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self._proxy: HttpProxy

    async def run(self) -> None:
        """Until the runner is gone."""
        from caisson_gate.ca import Authority
        from caisson_gate.proxy import Proxy

        authority = Authority(self._run)
        self._proxy = Proxy(self._boxes, authority, self._upstream_ca)
        await self._proxy.start()
        trust = self._write_trust(authority.trust())
        give_up()  # before the first byte of a box is read
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._readable)
        self._say({"ready": True, **trust})
        await self._gone.wait()
        for box in list(self._boxes):
            with contextlib.suppress(Exception):
                await self._close_box(box, "the runner is gone")
        await self._proxy.stop()

    def _write_trust(self, trust: Any) -> dict[str, Any]:
        """The box's trust material as files for read-only binds."""
        files = []
        for number, (target, content) in enumerate(trust.files.items()):
            source = self._folder / f"trust-{number}"
            source.write_bytes(content)
            source.chmod(0o644)
            files.append([str(source), target])
        return {"files": files, "env": dict(trust.env)}

    def _readable(self) -> None:
        for received in wire.waiting(self._control):
            if received is None:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
                self._gone.set()
                return
            task = asyncio.ensure_future(self._do(*received))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _say(self, message: wire.Message) -> None:
        with contextlib.suppress(OSError):  # the runner is gone; the next read says so
            wire.send(self._control, message)

    async def _do(self, request: wire.Message, descriptors: list[int]) -> None:
        actions: dict[str, Callable[[wire.Message, list[int]], Awaitable[dict[str, Any]]]] = {
            "ping": self._ping,
            "check": self._check,
            "open": self._open,
            "phase": self._phase,
            "close": self._close,
        }
        try:
            answer = await actions[request["op"]](request, descriptors)
        except Exception as problem:
            answer = {"failed": str(problem) or type(problem).__name__, "code": getattr(problem, "exit_code", 3)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._say({"id": request["id"], **answer})

    def _policy(self, request: wire.Message, descriptors: list[int]) -> Policy:
        """The policy of a request: its text is in the first descriptor. Read once: bundles ask the host's clients."""
        with open(descriptors.pop(0), "rb") as file:
            key = file.read(), request["source"]
        if key not in self._policies:
            self._policies[key] = parse(*key, bundle)
        return self._policies[key]

    @staticmethod
    async def _ping(_: wire.Message, __: list[int]) -> dict[str, Any]:
        return {}

    async def _check(self, request: wire.Message, descriptors: list[int]) -> dict[str, Any]:
        """Before there is a box: whether the policy can be taken, and which ports it wants listened on."""
        policy = self._policy(request, descriptors)
        names = credential_names(policy)
        return {
            "ports": ports(policy),
            "phases": list(policy.phases),
            "policy_sha256": policy.sha256,
            "warnings": list(policy.warnings),
            "env": {name: placeholder(name) for name in names},
        }

    async def _open(self, request: wire.Message, descriptors: list[int]) -> dict[str, Any]:
        """Descriptors: the policy's text, then the box's sockets. All taken over, also by a refusal."""
        policy = self._policy(request, descriptors)
        box, folder = request["box"], Path(request["folder"])
        digest = policy.sha256
        path = folder / "events.jsonl"
        journal = Journal(path, run=request["run"], box=box, policy_sha256=digest, limit=JOURNAL_BYTES)
        served = Served(
            box=box,
            run=request["run"],
            policy=policy,
            journal=journal,
            folder=folder,
            resolver=self._resolver,
            pool=Pool(),
            phase=request["phase"],
            record=request["record"],
            replay=Path(request["replay"]) if request["replay"] else None,
        )
        about = f"{Path(request['source']).name}, bundles expanded; sha256 {policy.sha256}"
        (folder / "policy.toml").write_text(toml(policy, (about,)), "utf-8")
        (folder / "policy.json").write_bytes(policy.canonical)
        made = [(about, descriptors.pop(0)) for about in request["listeners"]]
        listeners = Listeners(served, self._proxy, made)
        self._boxes[box], self._listeners[box] = served, listeners
        try:
            await self._proxy.opened(served)
            await self._begin(served, listeners, [about["port"] for about, _ in made if about["what"] == "tcp"])
        except BaseException:
            await self._close_box(box, "could not be opened")
            raise
        return {"policy_sha256": policy.sha256, "warnings": list(policy.warnings)}

    @staticmethod
    async def _begin(served: Served, listeners: Listeners, listening: list[int]) -> None:
        policy = served.policy
        mode = {"mode": policy.network_mode, "action": policy.action, "phase": served.phase}
        served.journal.append("gate", what="opened", **mode, ports=listening)
        await listeners.start()

    async def _phase(self, request: wire.Message, _: list[int]) -> dict[str, Any]:
        served = self._boxes[request["box"]]
        served.journal.append("gate", what="phase", phase=request["phase"])
        served.phase = request["phase"]
        return {}

    async def _close(self, request: wire.Message, _: list[int]) -> dict[str, Any]:
        return await self._close_box(request["box"], "closed")

    async def _close_box(self, box: str, why: str) -> dict[str, Any]:
        served = self._boxes[box]
        counts: dict[str, Any] = {}
        listeners = self._listeners.pop(box, None)
        try:
            if listeners is not None:
                counts = await listeners.close()
            await self._proxy.closed(box)
        finally:
            self._boxes.pop(box, None)
            served.journal.append("gate", what=why, counts=counts)
            events, digest = served.journal.head()
            await asyncio.to_thread(served.journal.close)  # waits for the disk
        return {"events": events, "sha256": digest, "counts": counts}


def _end_with_runner(control: socket.socket) -> None:
    """In a thread: the runner's end is noticed and acted upon also when the loop hangs."""
    import select

    poll = select.poll()
    poll.register(control.fileno(), select.POLLHUP)
    poll.poll()
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _log_sparingly() -> None:
    """The first `MOST_LINES` of what goes wrong; what a box can make go wrong again and again fills no disk."""
    numbers = itertools.count()
    handler = logging.StreamHandler()
    handler.addFilter(lambda _: next(numbers) < MOST_LINES)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _raise_descriptors() -> None:
    """As many as there can be: a gate without one left can serve no box. Root may go beyond its limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        above = max(most, int(Path("/proc/sys/fs/nr_open").read_text()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (above, above))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Entry point of ``python -m caisson_gate.process``."""
    import json

    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the runner closes us when it has finished
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _raise_descriptors()
    _log_sparingly()
    threading.Thread(target=_end_with_runner, args=(control,), daemon=True).start()

    async def work() -> None:
        await Gate(control, json.loads(sys.argv[2])).run()

    try:
        asyncio.run(work())
    except Exception as problem:
        with contextlib.suppress(OSError):
            code = getattr(problem, "exit_code", 3)
            said = str(problem) if code == 2 else f"{type(problem).__name__}: {problem}"
            wire.send(control, {"failed": said[:2000], "code": code})
        raise


if __name__ == "__main__":
    main()
