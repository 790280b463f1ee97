"""One virtual machine: a job goes in as a tar, its exit code and files come back as a tar.

QEMU under software emulation: hardware virtualisation does not carry stock kernels everywhere, emulation does. The
root file system is shared and never written (``snapshot=on``), so machines start from the same bytes each time. QEMU
dies with the process that started it, also when that is killed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RESULT_BYTES = 64 << 20
RUNNING: set[subprocess.Popen[bytes]] = set()


def stop_all() -> None:
    """End every machine now; those who wait for them get a MachineError."""
    for machine in list(RUNNING):
        machine.kill()


def sweep(folder: Path) -> None:
    """Remove what killed runs have left: folders named after a process that is gone."""
    for left in folder.glob("vm-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)


class MachineError(Exception):
    """The machine gave no answer: our fault or the host's, never a failed test. One line, then the console's end."""

    console: bytes = b""
    """All that the machine had told until then."""


@dataclass(frozen=True)
class Kernel:
    """What a machine boots."""

    name: str
    folder: Path

    @property
    def release(self) -> str:
        return (self.folder / "release").read_text().strip()

    @property
    def packages(self) -> list[str]:
        return (self.folder / "packages").read_text().split()


@dataclass(frozen=True)
class Answer:
    """What came back."""

    code: int
    log: bytes
    dmesg: bytes
    files: dict[str, bytes]
    seconds: float


def qemu(kernel: Kernel, image: Path, job: Path, out: Path, console: Path, memory_mib: int, cpus: int) -> list[str]:
    """The whole command: no network, no display, no reboot.

    ``max`` because there is no host processor to copy, without what costs an emulator much and the tests nothing: a
    fifth level of page tables, a check at every touch of user memory.
    """

    def drive(path: Path, *options: str) -> list[str]:
        return [
            "-drive",
            ",".join((f"file={path}", "if=virtio", "format=raw", "cache=unsafe", "aio=threads", *options)),
        ]

    words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "random.trust_cpu=on"]
    # On a busy host the guest measures its processor's clock wrongly: 5.10 panics, and time runs many times too fast.
    words += ["no_timer_check", "tsc=unstable", "clocksource=hpet"]
    words += ["systemd.unified_cgroup_hierarchy=1", "cgroup_no_v1=all", "oops=panic"]
    return [
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
        *("-M", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off,smap=off"),
        *("-smp", str(cpus), "-m", str(memory_mib)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{console}"),
        *("-kernel", str(kernel.folder / "vmlinuz"), "-initrd", str(kernel.folder / "initrd.img")),
        *drive(image, "snapshot=on"),
        *drive(job, "readonly=on"),
        *drive(out),
        *("-device", "virtio-rng-pci", "-append", " ".join(words)),
    ]


def play(
    kernel: Kernel,
    image: Path,
    job: bytes,
    timeout_s: float,
    memory_mib: int = 2048,
    cpus: int = 2,
    scratch: Path | None = None,
) -> Answer:
    """Boot, run, return. Raises MachineError when no exit code comes back. ``scratch``: where the disks are made."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"vm-{os.getpid()}-", dir=scratch) as name:
        folder = Path(name)
        disk, out, console = folder / "job.tar", folder / "out.tar", folder / "console"
        disk.write_bytes(job + b"\0" * (-len(job) % 512))
        with open(out, "wb") as empty:
            empty.truncate(RESULT_BYTES)
        command = qemu(kernel, image, disk, out, console, memory_mib, cpus)
        machine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": name},
        )
        RUNNING.add(machine)
        try:
            _, told = machine.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise silent(f"{kernel.name}: no answer within {timeout_s:g} s", console) from None
        finally:
            RUNNING.discard(machine)
            if machine.poll() is None:
                machine.kill()
                machine.wait()
        if machine.returncode:
            words = " ".join(told.decode(errors="replace").split())
            raise silent(f"{kernel.name}: qemu ended with {machine.returncode}{': ' if words else ''}{words}", console)
        files = unpack(out.read_bytes())
        if "code" not in files:
            raise silent(f"{kernel.name}: the machine gave no exit code back", console)
        code = int(files.pop("code"))
        log, dmesg = files.pop("log", b""), files.pop("dmesg", b"")
        return Answer(code, log, dmesg, files, time.monotonic() - started)


def unpack(data: bytes) -> dict[str, bytes]:
    """Files of a result disk by name; nothing when the machine wrote none."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                held = archive.extractfile(member) if member.isfile() else None
                if held is not None:
                    found[member.name.removeprefix("./")] = held.read()
    except tarfile.ReadError:
        pass
    return found


def pack(files: dict[str, bytes | Path]) -> bytes:
    """A job: bytes, or files of the host, by their name in the guest's /job."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else content.read_bytes()
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return held.getvalue()


def silent(problem: str, console: Path) -> MachineError:
    """The error of a machine that gave no answer, with what its console knows."""
    error = MachineError(f"{problem}\n{end_of(console)}")
    if console.exists():
        error.console = console.read_bytes()
    return error


def end_of(console: Path) -> str:
    """The last lines of a console, safe to print."""
    try:
        text = console.read_bytes()[-3000:]
    except OSError:
        return "(no console)"
    return "\n".join("  | " + ascii(line.decode(errors="replace"))[1:-1] for line in text.splitlines()[-25:])
