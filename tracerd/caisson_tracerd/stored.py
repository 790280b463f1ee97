"""Compiled programs, kept for the next start: what clang takes seconds for is then a matter of milliseconds.

After a load the loader writes down what it gave the kernel: instructions, shapes of maps, contents of tables. When
sources, loader, kernel and its types are the same to the byte, a later start makes the same maps and programs with
plain bpf(2). The kernel verifies them as ever, and the self-test follows as ever. Anything unexpected means: compile.

Standard library only; the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path("/var/cache/caisson")
"""For root alone. ``CAISSON_CACHE`` names another, or none when it is empty."""
KEPT = 3
"""Sets of programs: kernels and versions one goes back and forth between."""
_LOADERS = 4
"""Threads at most that wait for the verifier."""
_LOG_BYTES = 1 << 20
_NR = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _PROG_LOAD, _OBJ_PIN, _INFO, _RAW_OPEN = 0, 1, 2, 5, 6, 15, 17
_RAW_TRACEPOINT, _PROG_ARRAY, _HASH_OF_MAPS, _RINGBUF = 17, 3, 13, 27
_LOAD_IMM64, _FROM_MAP = 0x18, 1
_libc = ctypes.CDLL(None, use_errno=True)


class Unusable(Exception):
    """Compile instead."""


def folder() -> Path | None:
    """Where compiled programs lie, or None when they are not to be kept."""
    named = os.environ.get("CAISSON_CACHE")
    if named is None:
        return FOLDER
    return Path(named) if named else None


def key(sources: Path, level: int) -> str:
    """Everything that decides what the loader makes."""
    seen = hashlib.sha256()
    here = Path(__file__).resolve().parent
    names = ("loader", "stored", "rules", "trial", "btf", "hooked", "parts", "pruned", "source", "tree")
    own = [here / f"{name}.py" for name in names]
    files = sorted(path for path in sources.rglob("*") if path.suffix in (".c", ".h"))
    bcc = sorted(Path("/usr/lib").glob("*/libbcc.so*"))
    types = [Path("/sys/kernel/btf") / name for name in ("vmlinux", "overlay")]
    # Which hooks work is not in the kernel's build alone: a boot option turns the BPF LSM or the lockdown on.
    booted = [Path("/proc/cmdline"), *(Path("/sys/kernel/security") / name for name in ("lsm", "lockdown"))]
    for path in [*files, *own, *types, *booted]:
        data = b""
        with suppress(OSError):
            data = path.read_bytes()
        seen.update(f"{path.name} {len(data)}\n".encode() + data)
    for path in bcc:
        seen.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    about = os.uname()
    possible = Path("/sys/devices/system/cpu/possible").read_text()
    tier = os.environ.get("CAISSON_TIER", "auto")
    seen.update(f"{about.release} {about.version} {about.machine} {possible} {level} {tier}".encode())
    return seen.hexdigest()


def taken(code: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Programs whose maps this process holds, as (programs, shapes of their maps) that any process can make anew."""
    maps: dict[str, dict[str, Any]] = {}
    programs: dict[str, Any] = {}
    for label, instructions in code.items():
        uses = {}
        plain = bytearray(instructions)
        for at, descriptor in _map_uses(instructions):
            shape = _shape(descriptor)
            uses[str(at)] = shape["name"]
            maps.setdefault(shape["name"], shape)
            struct.pack_into("<i", plain, at * 8 + 4, 0)  # a descriptor means nothing to anybody else
        programs[label] = {"code": plain.hex(), "maps": uses}
    return programs, maps


class Loaded:
    """Programs in the kernel and their maps, held by this process until `close`. Methods raise OSError."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        """``programs`` by label and ``maps`` by name, as `taken` told them; ``contents`` of maps by place."""
        self._programs: Mapping[str, Any] = found["programs"]
        self._held: list[int] = []
        self.maps: dict[str, int] = {}
        self.programs: dict[str, int] = {}
        _raise_locked_memory()
        try:
            for name, shape in found["maps"].items():
                self.maps[name] = _made(shape, self._held)
                for number, content in found["contents"].get(name, {}).items():
                    _update(self.maps[name], struct.pack("I", int(number)), bytes.fromhex(content))
        except BaseException:
            self.close()
            raise

    def code(self, label: str) -> bytes:
        """A program's instructions with the descriptors of these maps."""
        program = self._programs[label]
        instructions = bytearray.fromhex(program["code"])
        for at, name in program["maps"].items():
            struct.pack_into("<i", instructions, int(at) * 8 + 4, self.maps[name])
        return bytes(instructions)

    def load(self, labels: Iterable[str], places: Mapping[str, int]) -> None:
        """Have the verifier look at each, on every core; ``places``: of those that others call, in their table."""
        waiting = sorted(labels, key=lambda label: len(self._programs[label]["code"]))
        problems: list[OSError] = []

        def work() -> None:
            while not problems:
                try:
                    label = waiting.pop()
                except IndexError:
                    return
                try:
                    self.programs[label] = _loaded(label, self.code(label))
                    self._held.append(self.programs[label])
                except OSError as problem:
                    problems.append(problem)

        threads = [threading.Thread(target=work) for _ in range(min(_LOADERS, len(os.sched_getaffinity(0))) - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        for label, place in places.items():
            _update(self.maps["stages"], struct.pack("I", place), struct.pack("I", self.programs[label]))

    def attach(self, points: Iterable[str]) -> dict[str, int]:
        """Links of raw tracepoints, by name."""
        links = {}
        for point in points:
            links[point] = _opened(point, self.programs[point])
            self._held.append(links[point])
        return links

    def pin(self, pins: Path, maps: Iterable[str], links: Mapping[str, int]) -> None:
        """All under one new folder."""
        (pins / "boxes_rings").mkdir(parents=True, mode=0o700)
        for name in maps:
            _pin(self.maps[name], pins / f"map_{name}")
        for name, link in links.items():
            _pin(link, pins / f"link_{name}")

    def close(self) -> None:
        """What is pinned stays."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()


def save(where: Path, name: str, manifest: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write down what `restore` reads; ``found`` as `Loaded` takes it, with ``points``, ``pinned`` and ``stages``."""
    document = json.dumps({**found, "manifest": dict(manifest)})
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = where / f"{name}.{os.getpid()}.part"
    part.touch(0o600)
    part.write_text(hashlib.sha256(document.encode()).hexdigest() + "\n" + document)
    part.rename(where / f"{name}.json")
    kept = sorted(where.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in kept[KEPT:]:
        old.unlink(missing_ok=True)


def restore(
    where: Path, name: str, pins: Path, hook: Callable[[Loaded, list[Any]], dict[str, int]] | None = None
) -> dict[str, Any]:
    """Load, attach and pin what was written down; returns the manifest. `Unusable` leaves no pin and no program.

    ``hook`` attaches the programs of the trampoline tier (`hooked.again`).
    """
    began = time.monotonic()
    found = _read(where, name)
    try:
        loaded = Loaded(found)
        try:
            loaded.load([*found["points"], *found["stages"]], found["stages"])
            links = hook(loaded, found["hooks"]) if hook is not None else {}
            try:
                loaded.pin(pins, found["pinned"], links | loaded.attach(found["points"]))
            finally:
                for link in links.values():
                    os.close(link)
        finally:
            loaded.close()
    except (OSError, KeyError, ValueError, struct.error) as problem:
        raise Unusable(f"stored programs do not load: {problem}") from None
    manifest: dict[str, Any] = found["manifest"]
    manifest["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    manifest["pins"] = str(pins)
    manifest["compiled"] = False
    manifest["load_seconds"] = round(time.monotonic() - began, 3)
    return manifest


def _read(where: Path, name: str) -> dict[str, Any]:
    path = where / f"{name}.json"
    try:
        for one in (where, path):
            found = one.stat()
            if found.st_uid != 0 or found.st_mode & 0o022:
                raise Unusable(f"{one} can be written by others than root")
        digest, _, document = path.read_text().partition("\n")
        if hashlib.sha256(document.encode()).hexdigest() != digest:
            raise Unusable(f"{path} is damaged")
        read: dict[str, Any] = json.loads(document)
        return read
    except (OSError, ValueError) as problem:
        raise Unusable(str(problem)) from None


def _raise_locked_memory() -> None:
    """Before 5.11 maps and programs count as locked memory, 64 KiB by default."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _bpf(command: int, values: bytes) -> int:
    buffer = ctypes.create_string_buffer(values, 128)
    result: int = _libc.syscall(_NR[os.uname().machine], command, buffer, 128)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _map_uses(instructions: bytes) -> list[tuple[int, int]]:
    """(index, descriptor) of each instruction that names a map."""
    found, at = [], 0
    while at < len(instructions):
        code, registers, _, value = struct.unpack_from("<BBhi", instructions, at)
        if code == _LOAD_IMM64:
            if registers >> 4 == _FROM_MAP:
                found.append((at // 8, value))
            at += 8
        at += 8
    return found


def _shape(descriptor: int) -> dict[str, Any]:
    info = ctypes.create_string_buffer(88)
    _bpf(_INFO, struct.pack("IIQ", descriptor, len(info), ctypes.addressof(info)))
    kind, _, keys, values, entries, flags, name = struct.unpack_from("IIIIII16s", info)
    return {
        "name": name.rstrip(b"\0").decode(), "type": kind, "key": keys, "value": values, "entries": entries,
        "flags": flags,
    }  # fmt: skip


def _made(shape: Mapping[str, Any], held: list[int]) -> int:
    inner = 0
    if shape["type"] == _HASH_OF_MAPS:
        inner = _bpf(_MAP_CREATE, struct.pack("IIIIIII", _RINGBUF, 0, 0, 4096, 0, 0, 0))
        held.append(inner)
    label = shape["name"].encode()[:15]
    values = struct.pack(
        "IIIIIII16s", shape["type"], shape["key"], shape["value"], shape["entries"], shape["flags"], inner, 0, label
    )
    descriptor = _bpf(_MAP_CREATE, values)
    held.append(descriptor)
    return descriptor


def _update(descriptor: int, place: bytes, value: bytes) -> None:
    held, data = ctypes.create_string_buffer(place, len(place)), ctypes.create_string_buffer(value, len(value))
    _bpf(_UPDATE, struct.pack("IIQQQ", descriptor, 0, ctypes.addressof(held), ctypes.addressof(data), 0))


def _loaded(label: str, instructions: bytes) -> int:
    try:
        return _load(instructions, None)
    except OSError as problem:
        told = ctypes.create_string_buffer(_LOG_BYTES)
        with suppress(OSError):  # once more, for what the verifier says
            return _load(instructions, told)
        lines = told.value.decode(errors="replace").splitlines()
        said = [line for line in lines if line and not line.startswith(("processed ", "verification time"))]
        why = f"{os.strerror(problem.errno or 0)}{': ' + said[-1] if said else ''}"
        raise OSError(problem.errno, f"program {label}: {why}") from None


def _load(instructions: bytes, told: Any) -> int:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    terms = ctypes.create_string_buffer(b"GPL")
    log = (0, 0, 0) if told is None else (1, _LOG_BYTES, ctypes.addressof(told))
    count = len(instructions) // 8
    values = struct.pack(
        "IIQQIIQ", _RAW_TRACEPOINT, count, ctypes.addressof(code), ctypes.addressof(terms), *log
    )  # fmt: skip
    return _bpf(_PROG_LOAD, values)


def _opened(point: str, program: int) -> int:
    name = ctypes.create_string_buffer(point.encode())
    return _bpf(_RAW_OPEN, struct.pack("QI", ctypes.addressof(name), program))


def _pin(descriptor: int, path: Path) -> None:
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_OBJ_PIN, struct.pack("QII", ctypes.addressof(name), descriptor, 0))
