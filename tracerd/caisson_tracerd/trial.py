"""Which hooks of the trampoline tier work on this kernel, found by trying: load, attach, and see a real event.

Neither a symbol nor a successful load says that a hook works: some kernels refuse the program type although every
feature check says yes (EPERM at load), BPF LSM on 5.10 loads and attaches and never fires, and functions get renamed or
inlined. So a program of five instructions that counts is attached to each hook, this process does what must bring the
hook about, and the count is read. It takes milliseconds; only what counted is compiled into the witness.

Standard library only: the loader runs it on the distribution's Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __package__:
    from caisson_tracerd.btf import Btf
else:  # beside the loader, which runs without the package
    from btf import Btf  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore

TRACING, LSM = 26, 29
FEXIT, LSM_MAC = 25, 27
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD, _RAW_TRACEPOINT_OPEN = 0, 1, 5, 17
_NR_BPF: Final = {"x86_64": 321, "aarch64": 280}
_LOG_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Hook:
    """One place in the kernel. ``functions``: the names it has had, the newest last; ``lost``: what is lost without."""

    name: str
    how: str
    """``fexit`` or ``lsm``."""
    functions: tuple[str, ...]
    lost: str
    parameters: int
    """A function of another shape is another function."""


HOOKS: Final = (
    Hook(
        "open",
        "fexit",
        ("do_filp_open", "do_file_open"),
        "the name of an open or a refused exec is read from the caller's memory (forgeable; flagged when seen to"
        " change) and the object of an open looked up after the call",
        3,
    ),
    Hook(
        "connect",
        "lsm",
        ("bpf_lsm_socket_connect",),
        "the address of a connect is read from the caller's memory (forgeable)",
        3,
    ),
    *(
        Hook(
            name,
            "lsm",
            (f"bpf_lsm_path_{name}",),
            f"of {what}, the names are recorded as given, and not which object they led to",
            parameters,
        )
        for name, what, parameters in (
            ("unlink", "an unlink", 2),
            ("rmdir", "a removed folder", 2),
            ("mkdir", "a made folder", 3),
            ("mknod", "a made node", 4),
            ("symlink", "a symbolic link", 3),
            ("link", "a hard link", 3),
            ("rename", "a rename", 4),
            ("truncate", "a truncation by name", 1),
            ("chmod", "a change of mode", 2),
            ("chown", "a change of owner", 3),
        )
    ),
)


@dataclass(frozen=True)
class Tried:
    """What came of one hook."""

    hook: str
    how: str
    function: str
    ok: bool
    reason: str
    lost: str
    number: int = 0
    """The function's BTF id."""

    def key(self) -> list[Any]:
        """What a program for it depends on."""
        return [self.hook, self.how, self.function, self.number]

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "hook": self.hook,
            "how": self.how,
            "function": self.function,
            "ok": self.ok,
            "reason": self.reason,
            "lost": "" if self.ok else self.lost,
        }


class Kernel:
    """bpf(2): the four commands that loading needs."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._number = _NR_BPF[platform.machine()]

    def command(self, command: int, attributes: bytes) -> int:
        buffer = ctypes.create_string_buffer(attributes, 128)
        result: int = self._libc.syscall(self._number, command, buffer, 128)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def counter(self) -> int:
        """An array with one number of 64 bits."""
        return self.command(_MAP_CREATE, struct.pack("IIII", 2, 4, 8, 1))

    def read(self, counter: int) -> int:
        key, value = ctypes.c_uint32(0), ctypes.c_uint64(0)
        self.command(_MAP_LOOKUP, struct.pack("IIQQ", counter, 0, ctypes.addressof(key), ctypes.addressof(value)))
        return value.value

    def load(self, code: bytes, how: str, number: int, name: str, log: bool = False) -> int:
        """A program for the function with this BTF id; OSError when refused, with the verifier's last line if asked."""
        instructions = ctypes.create_string_buffer(code, len(code))
        license_text = ctypes.create_string_buffer(b"GPL")
        told = ctypes.create_string_buffer(_LOG_BYTES)
        kind, attach = (TRACING, FEXIT) if how == "fexit" else (LSM, LSM_MAC)
        attributes = struct.pack(
            "<IIQQIIQII16sIIIIQIIQII",
            kind,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(license_text),
            1 if log else 0,
            _LOG_BYTES if log else 0,
            ctypes.addressof(told) if log else 0,
            0,
            0,
            name.encode()[:15],
            0,
            attach,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            number,
        )
        try:
            return self.command(_PROG_LOAD, attributes)
        except OSError as problem:
            if problem.errno == errno.ENOSPC and log:  # the log was too small, not the program wrong
                return self.load(code, how, number, name)
            lines = [line for line in told.value.decode(errors="replace").splitlines() if line.strip()]
            last = [line for line in lines if not line.startswith(("processed ", "verification time", "stack depth"))]
            raise OSError(problem.errno, f"{problem.strerror}{': ' + last[-1] if last else ''}") from None

    def attach(self, program: int) -> int:
        """A link; the program runs from now on."""
        return self.command(_RAW_TRACEPOINT_OPEN, struct.pack("QI", 0, program))


def counting(counter: int) -> bytes:
    """``counter += 1; return 0``."""

    def step(code: int, registers: int, offset: int, value: int) -> bytes:
        return struct.pack("<BBhi", code, registers, offset, value)

    return (
        step(0x18, 0x21, 0, counter)  # r1 = address of the value, in two halves
        + step(0, 0, 0, 0)
        + step(0xB7, 0x02, 0, 1)  # r2 = 1
        + step(0xDB, 0x21, 0, 0)  # lock *(u64 *)(r1 + 0) += r2
        + step(0xB7, 0x00, 0, 0)  # r0 = 0
        + step(0x95, 0, 0, 0)
    )


def fetches(kernel: Kernel) -> bool:
    """Whether programs may add and get the old value in one step (5.12), asked with a program that does."""
    step = struct.Struct("<BBhi").pack
    return accepts(
        kernel,
        step(0xB7, 0x02, 0, 1)  # r2 = 1
        + step(0x7B, 0x2A, -8, 0)  # *(u64 *)(r10 - 8) = r2
        + step(0xDB, 0x2A, -8, 0x01),  # r2 = atomic_fetch_add((u64 *)(r10 - 8), r2)
    )


def tells_ancestors(kernel: Kernel) -> bool:
    """Whether tracing programs may ask for the cgroup above (not on 5.10)."""
    step = struct.Struct("<BBhi").pack
    return accepts(
        kernel, step(0xB7, 0x01, 0, 1) + step(0x85, 0, 0, 123)
    )  # r1 = 1; call get_current_ancestor_cgroup_id


def accepts(kernel: Kernel, code: bytes) -> bool:
    """Whether the kernel takes a raw tracepoint program of these instructions."""
    code += struct.pack("<BBhi", 0xB7, 0x00, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "<IIQQ", 17, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(license_text)
    )
    try:
        os.close(kernel.command(_PROG_LOAD, attributes))
    except OSError:
        return False
    return True


def try_all(btf: Btf, wanted: tuple[Hook, ...] = HOOKS) -> list[Tried]:
    """Every hook, with what came of it. Leaves nothing attached."""
    kernel = Kernel()
    return [_try(kernel, btf, hook) for hook in wanted]


def why_none(tried: list[Tried]) -> str:
    """Why no hook is in use, in one line."""
    if not tried:
        return "not asked for"
    by_reason: dict[str, list[str]] = {}
    for one in tried:
        by_reason.setdefault(one.reason, []).append(one.function or one.hook)
    return "; ".join(
        f"{reason} ({names[0]}{f' and {len(names) - 1} others' if len(names) > 1 else ''})"
        for reason, names in by_reason.items()
    )


def _try(kernel: Kernel, btf: Btf, hook: Hook) -> Tried:
    def no(reason: str, function: str = "") -> Tried:
        return Tried(hook.name, hook.how, function, False, reason, hook.lost)

    known = [name for name in hook.functions if btf.function(name) is not None]
    known = [name for name in known if _fits(btf, hook, name)]
    if not known:
        return no(f"this kernel has no {' or '.join(hook.functions)} of that shape")
    function = known[-1]
    number = btf.function(function)
    assert number is not None
    counter = kernel.counter()
    try:
        program = kernel.load(counting(counter), hook.how, number, "trial")
    except OSError as problem:
        os.close(counter)
        return no(f"the kernel refuses the program: {errno.errorcode.get(problem.errno or 0, '?')}", function)
    try:
        link = kernel.attach(program)
    except OSError as problem:
        return no(f"the program loads but cannot be attached: {errno.errorcode.get(problem.errno or 0, '?')}", function)
    else:
        try:
            _TRIGGERS[hook.name]()
            count = kernel.read(counter)
        finally:
            os.close(link)
    finally:
        os.close(program)
        os.close(counter)
    if not count:
        return no("it loads and attaches but never fires", function)
    return Tried(hook.name, hook.how, function, True, "", hook.lost, number)


def _fits(btf: Btf, hook: Hook, function: str) -> bool:
    count = btf.parameters_of(function)
    return count in (hook.parameters, hook.parameters + (hook.name == "rename"))  # which got flags in 5.19


def _connect() -> None:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect("\0caisson-trial-nobody-listens")


def _in_a_folder(act: Callable[[Path], object]) -> Callable[[], None]:
    """What to do in a folder with a file ``a``."""

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="caisson-trial-") as name:
            (Path(name) / "a").touch()
            act(Path(name))

    return run


def _make_and_remove(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d").rmdir()


_TRIGGERS: Final[dict[str, Callable[[], None]]] = {
    "open": lambda: os.close(os.open("/dev/null", os.O_RDONLY)),
    "connect": _connect,
    "unlink": _in_a_folder(lambda folder: (folder / "a").unlink()),
    "rmdir": _in_a_folder(_make_and_remove),
    "mkdir": _in_a_folder(lambda folder: folder.joinpath("d").mkdir()),
    "mknod": _in_a_folder(lambda folder: os.mkfifo(folder / "p")),
    "symlink": _in_a_folder(lambda folder: (folder / "b").symlink_to("a")),
    "link": _in_a_folder(lambda folder: (folder / "b").hardlink_to(folder / "a")),
    "rename": _in_a_folder(lambda folder: (folder / "a").rename(folder / "b")),
    "truncate": _in_a_folder(lambda folder: os.truncate(folder / "a", 1)),
    "chmod": _in_a_folder(lambda folder: (folder / "a").chmod(0o600)),
    "chown": _in_a_folder(lambda folder: os.chown(folder / "a", 0, 0)),
}
