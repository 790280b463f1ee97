"""A real daemon with real programs in folders of its own, and a client that runs commands in its boxes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from caisson_proto.record import Record, decode, strip_ring
from caisson_tracerd import trial
from caisson_tracerd.btf import Btf
from caisson_tracerd.cgroup import sweep
from caisson_tracerd.loader import BTF
from caisson_tracerd.pins import SYSTEM_PYTHON
from seen import Seen

NOBODY = 65534
SLOW = 25 if "CAISSON_VM" in os.environ else 1
"""An emulated machine takes its time."""
FEWER = 8 if "CAISSON_VM" in os.environ else 1
"""A flood is one there with fewer events too."""


def why_not() -> str | None:
    """The reason why real programs cannot be loaded here."""
    if os.geteuid() != 0:
        return "BPF programs can be loaded by root only"
    if not BTF.exists():
        return "this kernel has no BTF"
    if subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True).returncode:
        return "python3-bpfcc is not installed"
    return None


def why_no_trampoline() -> str | None:
    """The reason why the trampoline tier cannot be tested here."""
    tried = trial.try_all(Btf.read(BTF))
    if any(one.ok for one in tried):
        return None
    return f"the trampoline tier does not work on {os.uname().release}: {trial.why_none(tried)}"


SEEN = Seen()


@dataclass
class Daemon:
    """``tracerd serve`` in folders of its own."""

    root: Path
    cgroup_parent: str
    options: tuple[str, ...] = ()
    tier: str = "auto"
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.root / "log"

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def places(self) -> list[str]:
        return [
            f"--run-dir={self.run_dir}",
            f"--state-dir={self.root / 'state'}",
            f"--cgroup-parent={self.cgroup_parent}",
        ]

    def command(self, name: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "caisson_tracerd.cli", name, *self.places, *options]

    def start(self) -> None:
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command("serve", *self.options), stderr=log, env={**os.environ, "CAISSON_TIER": self.tier}
            )
        deadline = time.monotonic() + 40 * SLOW
        while "tracerd: ready" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"tracerd did not become ready: {self.log.read_text()}")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(20 * SLOW)
        self.process = None
        return code

    def remove(self) -> None:
        if self.process is not None:
            self.stop()
        subprocess.run(self.command("unload"), check=True, capture_output=True)
        sweep(f"{self.cgroup_parent}/user.0", lambda name: False)
        sweep(f"{self.cgroup_parent}/user.{NOBODY}", lambda name: False)
        shutil.rmtree(self.root)

    def client(self, uid: int = 0) -> Client:
        return Client(self.run_dir / str(uid) / "tracerd.sock", self.tier)


def wait_until_it_reads(process: subprocess.Popen[bytes]) -> None:
    """Until the gate's shell waits for its line: what it opened to come so far is not the box's doing."""
    call = Path(f"/proc/{process.pid}/syscall")
    deadline = time.monotonic() + 10 * SLOW
    while not call.read_bytes().startswith(b"0 0x0 "):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.0005)


class Client:
    """What a runner does with the daemon."""

    def __init__(self, socket: Path, tier: str = "auto") -> None:
        self.tier = tier
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.stub = rpc.TracerdStub(self.channel)

    def create(self, box_id: str, **fields: object) -> pb.CreateBoxResponse:
        return self.stub.CreateBox(pb.CreateBoxRequest(id=box_id, **fields), timeout=20 * SLOW)

    def start(self, box_id: str, argv: Sequence[str | bytes], **options: object) -> subprocess.Popen[bytes]:
        """A command that waited at a gate, was admitted, and runs."""
        process = self.hold(box_id, argv, **options)
        self.go(process)
        return process

    def hold(self, box_id: str, argv: Sequence[str | bytes], **options: object) -> subprocess.Popen[bytes]:
        """A command that is admitted and stands at its gate."""
        gate = ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", *argv]
        options = {"stdout": subprocess.PIPE, **options}
        process = subprocess.Popen(gate, stdin=subprocess.PIPE, **options)
        wait_until_it_reads(process)
        self.stub.Admit(pb.AdmitRequest(id=box_id, pid=process.pid), timeout=10 * SLOW)
        return process

    def go(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        process.stdin = None

    def run(self, box_id: str, argv: Sequence[str | bytes], **options: object) -> subprocess.CompletedProcess[bytes]:
        process = self.start(box_id, argv, **options)
        out, err = process.communicate(timeout=60 * SLOW)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def seal(self, box_id: str) -> dict[str, pb.ClassCount]:
        answer = self.stub.SealBox(pb.SealBoxRequest(id=box_id), timeout=30 * SLOW)
        return {count.kind: count for count in answer.counts}

    def journal(self, box_id: str, offset: int = 0, follow: bool = False) -> bytes:
        request = pb.ReadJournalRequest(id=box_id, offset=offset, follow=follow)
        return b"".join(part.data for part in self.stub.ReadJournal(request, timeout=60 * SLOW))

    def records(self, box_id: str) -> list[Record]:
        canonical, rest = strip_ring(self.journal(box_id))
        assert rest == b""
        records = list(decode(canonical))
        SEEN.add(self.tier, records)
        return records

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stub.GetInfo(pb.GetInfoRequest(), timeout=10 * SLOW).manifest_json)
        return found

    def needs(self, *hooks: str) -> None:
        """Skip the test, with the reason, where the kernel has not got all of these hooks of the trampoline tier."""
        for one in self.manifest()["trampoline"]:
            assert not one["reason"].startswith("the verifier refuses"), f"{one['hook']}: our fault, not the kernel's"
            if one["hook"] in hooks and not one["ok"]:
                pytest.skip(f"no hook {one['hook']} on {os.uname().release}: {one['reason']}")

    def needs_rings(self) -> None:
        """Skip the test where the programs do not see the requests of io_uring."""
        if "io_uring_complete" not in self.manifest()["hooks"]:
            pytest.skip(
                f"io_uring of {os.uname().release} is older than the programs know (6.0): requests are not told"
            )

    def drop(self, box_id: str) -> None:
        self.stub.DropBox(pb.DropBoxRequest(id=box_id), timeout=20 * SLOW)

    def watch(self, box_id: str, argv: Sequence[str | bytes], **options: object) -> list[Record]:
        """All of a box's life: the records of one command."""
        self.create(box_id)
        try:
            self.run(box_id, argv, **options)
            counts = self.seal(box_id)
            lost = {kind: str(one) for kind, one in counts.items() if one.dropped_ring or one.dropped_map}
            assert not lost, lost
            return self.records(box_id)
        finally:
            self.drop(box_id)


def make_daemon(name: str, *options: str, tier: str = "auto") -> Daemon:
    root = Path(tempfile.mkdtemp(prefix="caisson-tracerd-"))
    root.chmod(0o755)
    return Daemon(root, f"caisson-{name}-{os.getpid()}", options, tier)
