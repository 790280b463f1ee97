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
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path("/var/cache/caisson")
"""For root alone. ``CAISSON_CACHE`` names another, or none when it is empty."""
KEPT = 3
"""Sets of programs: kernels and versions one goes back and forth between."""
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
    own = [here / name for name in ("loader.py", "stored.py", "rules.py", "trial.py", "btf.py", "header.py")]
    files = sorted(path for path in sources.rglob("*") if path.suffix in (".c", ".h"))
    bcc = sorted(Path("/usr/lib").glob("*/libbcc.so*"))
    types = [Path("/sys/kernel/btf") / name for name in ("vmlinux", "overlay")]
    for path in [*files, *own, *types]:
        data = path.read_bytes() if path.exists() else b""
        seen.update(f"{path.name} {len(data)}\n".encode() + data)
    for path in bcc:
        seen.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    about = os.uname()
    possible = Path("/sys/devices/system/cpu/possible").read_text()
    tier = os.environ.get("CAISSON_TIER", "auto")
    seen.update(f"{about.release} {about.version} {about.machine} {possible} {level} {tier}".encode())
    return seen.hexdigest()


def save(
    where: Path,
    name: str,
    manifest: Mapping[str, Any],
    points: Iterable[str],
    code: Mapping[str, bytes],
    pinned: Iterable[str],
    stages: Mapping[str, int],
) -> None:
    """Write down what is loaded: code by tracepoint (``points``) or program, ``stages`` by place in their table."""
    maps: dict[str, dict[str, Any]] = {}
    programs: dict[str, Any] = {}
    for label, instructions in code.items():
        uses = {}
        for at, descriptor in _map_uses(instructions):
            shape = _shape(descriptor)
            uses[str(at)] = shape["name"]
            maps.setdefault(shape["name"], shape)
            if shape["name"] == "rules":
                shape["content"] = maps["rules"].get("content") or _content(descriptor, shape)
                maps["rules"] = shape
        programs[label] = {"code": instructions.hex(), "maps": uses}
    document = json.dumps(
        {
            "manifest": dict(manifest), "points": list(points), "programs": programs, "maps": maps,
            "pinned": list(pinned), "stages": dict(stages),
        }
    )  # fmt: skip
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = where / f"{name}.{os.getpid()}.part"
    part.touch(0o600)
    part.write_text(hashlib.sha256(document.encode()).hexdigest() + "\n" + document)
    part.rename(where / f"{name}.json")
    kept = sorted(where.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in kept[KEPT:]:
        old.unlink(missing_ok=True)


def restore(where: Path, name: str, pins: Path) -> dict[str, Any]:
    """Load, attach and pin what was written down; returns the manifest. `Unusable` leaves no pin and no program."""
    began = time.monotonic()
    found = _read(where, name)
    held: list[int] = []
    try:
        maps = {}
        for label, shape in found["maps"].items():
            maps[label] = _made(shape, held)
        programs = {}
        for label, program in found["programs"].items():
            programs[label] = _loaded(program, maps)
            held.append(programs[label])
        for label, place in found["stages"].items():
            _update(maps["stages"], struct.pack("I", place), struct.pack("I", programs[label]))
        (pins / "boxes_rings").mkdir(parents=True, mode=0o700)
        for label in found["pinned"]:
            _pin(maps[label], pins / f"map_{label}")
        for point in found["points"]:
            link = _opened(point, programs[point])
            held.append(link)
            _pin(link, pins / f"link_{point}")
    except (OSError, KeyError, ValueError, struct.error) as problem:
        raise Unusable(f"stored programs do not load: {problem}") from None
    finally:
        for descriptor in held:
            os.close(descriptor)
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


def _content(descriptor: int, shape: Mapping[str, Any]) -> dict[str, str]:
    """What an array holds, without its zeros."""
    value = ctypes.create_string_buffer(shape["value"])
    found = {}
    for number in range(shape["entries"]):
        place = ctypes.c_uint32(number)
        _bpf(_LOOKUP, struct.pack("IIQQQ", descriptor, 0, ctypes.addressof(place), ctypes.addressof(value), 0))
        if any(value.raw):
            found[str(number)] = value.raw.hex()
    return found


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
    for number, content in shape.get("content", {}).items():
        _update(descriptor, struct.pack("I", int(number)), bytes.fromhex(content))
    return descriptor


def _update(descriptor: int, place: bytes, value: bytes) -> None:
    held, data = ctypes.create_string_buffer(place, len(place)), ctypes.create_string_buffer(value, len(value))
    _bpf(_UPDATE, struct.pack("IIQQQ", descriptor, 0, ctypes.addressof(held), ctypes.addressof(data), 0))


def _loaded(program: Mapping[str, Any], maps: Mapping[str, int]) -> int:
    instructions = bytearray.fromhex(program["code"])
    for at, label in program["maps"].items():
        struct.pack_into("<i", instructions, int(at) * 8 + 4, maps[label])
    code = ctypes.create_string_buffer(bytes(instructions), len(instructions))
    terms = ctypes.create_string_buffer(b"GPL")
    values = struct.pack(
        "IIQQ", _RAW_TRACEPOINT, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(terms)
    )
    return _bpf(_PROG_LOAD, values)


def _opened(point: str, program: int) -> int:
    name = ctypes.create_string_buffer(point.encode())
    return _bpf(_RAW_OPEN, struct.pack("QI", ctypes.addressof(name), program))


def _pin(descriptor: int, path: Path) -> None:
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_OBJ_PIN, struct.pack("QII", ctypes.addressof(name), descriptor, 0))
