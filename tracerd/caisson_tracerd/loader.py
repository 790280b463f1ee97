#!/usr/bin/python3
"""The one-shot loader: compile, load, attach, pin, write the manifest, exit.

Runs on the distribution's own Python, because bcc comes from the distribution; standard library and bcc only, and
of this package only what lies beside it and is said to be so. The daemon starts it as a child and never holds bcc
itself.

No kernel headers are used: with headers of another version bcc compiles, loads and silently reads garbage. A small
source tree is made from the kernel's own BTF instead, so the types are the running kernel's.

Exit codes: 0 done; 3 refused, with one line on standard error.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # on its own, beside its neighbour and without the package
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import hooked  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import parts  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import pruned  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import rules  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import source  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import stored  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import tree  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import trial  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    from btf import Btf, BtfError  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
else:
    from caisson_tracerd import hooked, parts, pruned, rules, source, stored, tree, trial
    from caisson_tracerd.btf import Btf, BtfError

BTF = tree.BTF
OVERLAY_BTF = Path("/sys/kernel/btf/overlay")
TREES = tree.TREES
Refused = tree.Refused
kernel_types, helpers_missing = tree.kernel_types, tree.helpers_missing
write_source_tree, sweep_trees = tree.write_source_tree, tree.sweep_trees
API, remove_pins, source_digest = source.API, source.remove_pins, source.source_digest
TIERS = ("auto", "trampoline", "tracepoint")
HOOKS = (
    "sys_enter", "sys_exit", "sched_process_fork", "sched_process_exec", "sched_process_exit", "inet_sock_set_state",
    "cgroup_attach_task",
)  # fmt: skip
PINNED_MAPS = ("boxes", "rings", "levels", "stages")
OPTIONAL = re.compile(r"(io_\w+|ovl_inode)__\w+|cgroup__ancestor\w*")
"""Members that some kernels lack; the sources ask ``#ifdef CAISSON_HAS_…`` or for what they belong to."""


def all_types() -> Btf:
    """The kernel's types, and the overlay file system's where that is a module (Debian; from 5.11 on it tells them)."""
    btf = Btf.read(BTF)
    if btf.has_struct("ovl_inode"):
        return btf
    if not OVERLAY_BTF.exists():
        modprobe = shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if modprobe is not None:
            subprocess.run([modprobe, "-q", "overlay"], capture_output=True, timeout=30)
    return Btf.read(OVERLAY_BTF, btf) if OVERLAY_BTF.exists() else btf


def flatten(path: Path, seen: set[Path]) -> str:
    """One text of a source and what it includes: bcc rewrites map accesses only in its main file."""
    text = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#include "([^"]+)"', line)
        if found:
            target = (path.parent / found.group(1)).resolve()
            if target not in seen:
                seen.add(target)
                text += [flatten(target, seen), f'#line {number + 1} "{path.name}"']
        elif line.strip() != "#pragma once":
            text.append(line)
        else:
            text.append("")
    return "\n".join(text)


def definitions(text: str, btf: Btf, level: int) -> dict[str, int]:
    """What the sources must know about this kernel: every offset they ask for, and which variant of it this is."""
    values = {"CAISSON_BOX_LEVEL": level}
    if os.uname().machine == "x86_64":
        values["CAISSON_X86_64"] = 1
    if btf.has_struct("ovl_inode"):
        values["CAISSON_OVERLAY"] = 1
    # void *, task, and since 6.16 whether the whole group is dead
    if btf.parameters("btf_trace_sched_process_exit") == 3:
        values["CAISSON_EXIT_GROUP_DEAD"] = 1
    possible = Path("/sys/devices/system/cpu/possible").read_text().strip()
    values["CAISSON_CPUS"] = int(re.split("[-,]", possible)[-1]) + 1
    for owner, member in fields_used(text):
        try:
            place = btf.place(owner, member.split("__") if not member.startswith("__") else [member])
        except BtfError:
            if OPTIONAL.fullmatch(f"{owner}__{member}"):
                continue
            raise
        values[f"CAISSON_HAS_{owner}__{member}"] = 1
        values[f"CAISSON_OFFSET_{owner}__{member}"] = place.offset
        values[f"CAISSON_SIZE_{owner}__{member}"] = place.size
    values.update(uring_variant(btf, values))
    return values


def uring_variant(btf: Btf, values: dict[str, int]) -> dict[str, int]:
    """How this kernel tells of io_uring's requests; empty when in no way the programs know (before 6.0)."""
    known = "CAISSON_HAS_io_open__filename" in values and "CAISSON_HAS_io_kiocb__cqe__fd" in values
    if known and btf.parameters("btf_trace_io_uring_submit_req") == 2:
        found = {"CAISSON_URING": 1}
    elif known and btf.parameters("btf_trace_io_uring_submit_sqe") == 3:
        found = {"CAISSON_URING": 1, "CAISSON_URING_SQE": 1}
    else:
        return {}
    if btf.parameters("btf_trace_io_uring_complete") == 4:
        found["CAISSON_URING_CQE"] = 1
    return found


def tracepoints(defines: dict[str, int]) -> tuple[str, ...]:
    """The raw tracepoints the programs are attached to on this kernel."""
    if "CAISSON_URING" not in defines:
        return HOOKS
    submit = "io_uring_submit_sqe" if "CAISSON_URING_SQE" in defines else "io_uring_submit_req"
    return (*HOOKS, submit, "io_uring_complete")


def fields_used(text: str) -> set[tuple[str, str]]:
    """(structure, member) of every READ, READ_PLACE and OFFSET in the sources."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = {(owner, member) for owner, member in re.findall(r"\bREAD\([^,]+, (\w+), [^,]+, (\w+)\)", plain)}
    found |= {(owner, member) for owner, member in re.findall(r"\bOFFSET\((\w+), (\w+)\)", plain)}
    for owner, member in re.findall(r"\bREAD_PLACE\([^,]+, (\w+), [^,]+, (\w+)\)", plain):
        found |= {(owner, f"{member}__{part}") for part in ("mnt", "dentry")}
    return {(owner, member) for owner, member in found if owner != "type"}


def load(
    sources: Path, pins: Path, level: int, tier: str = "auto", cache: tuple[Path, str] | None = None
) -> dict[str, Any]:
    """Compile, load, attach and pin everything; returns the manifest."""
    started = time.monotonic()
    dump = tree.Dump()
    text = flatten(sources / "witness.c", set())
    try:
        btf = all_types()
        defines = definitions(text, btf, level)
    except BtfError as problem:
        raise Refused(f"{problem}; the programs do not know this kernel") from None
    if trial.fetches(trial.Kernel()):
        defines["CAISSON_FETCH"] = 1
    if trial.tells_ancestors(trial.Kernel()):
        defines["CAISSON_ANCESTOR"] = 1
    tried = trial.try_all(btf) if tier != "tracepoint" else []
    types = dump.types()
    points = tracepoints(defines)
    sweep_trees()
    with tempfile.TemporaryDirectory(prefix=TREES) as root:
        in_use = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(in_use, fcntl.LOCK_EX)  # until this process ends: what nobody holds is a killed loader's
        os.environ["BCC_KERNEL_SOURCE"] = root
        try:
            from bcc import BPF  # pyright: ignore[reportMissingImports]
            from bcc import __version__ as bcc_version  # pyright: ignore[reportMissingImports]
        except ImportError as problem:
            raise Refused(f"bcc is missing ({problem}); install the package python3-bpfcc") from None
        missing = helpers_missing(types)
        write_source_tree(Path(root), pruned.needed(types, text, tree.own_headers()) + missing)
        whole = False
        while True:
            hooks = [one for one in tried if one.ok]
            if tier == "trampoline" and not hooks:
                raise Refused(f"the trampoline tier does not work here: {trial.why_none(tried)}")
            try:
                found = made(BPF, text, defines, points, hooks)
            except parts.NotCompiled as problem:
                if whole:
                    raise Refused(f"bcc does not compile the programs: {problem}") from None
                whole = True  # a declaration that was left out is missed
                write_source_tree(Path(root), types + missing)
                continue
            loaded, links, refused = in_kernel(found, hooks)
            if not refused:
                break
            loaded.close()
            tried = [refused.get(one.hook, one) for one in tried]
    code = {label: bytes.fromhex(program["code"]) for label, program in found["programs"].items()}
    names = [*points, *(hooked.program_name(one) for one in hooks)]
    try:
        loaded.pin(pins, PINNED_MAPS, links)
    except OSError as problem:
        if pins.is_dir():
            remove_pins(pins)
        raise Refused(f"{pins} could not be made ({problem}); is a BPF file system mounted there?") from None
    manifest = {
        "api": API,
        "tier": "trampoline" if hooks else "tracepoint",
        "tier_reason": "" if hooks else trial.why_none(tried),
        "trampoline": [one.as_dict() for one in tried],
        "hooks": names,
        "sources": source_digest(sources),
        "bytecode_sha256": {label: hashlib.sha256(one).hexdigest() for label, one in code.items()},
        "instructions": {label: len(one) // 8 for label, one in code.items()},
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "btf_sha256": hashlib.sha256(BTF.read_bytes()).hexdigest(),
        "bcc": bcc_version,
        "definitions": {name: value for name, value in defines.items() if "_SIZE_" not in name},
        "maps": {name: {"entries": found["maps"][name]["entries"]} for name in PINNED_MAPS},
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pins": str(pins),
        "load_seconds": round(time.monotonic() - started, 3),
    }
    if cache is not None:
        try:
            stored.save(cache[0], cache[1], manifest, {**found, "hooks": [one.key() for one in hooks]})
        except OSError as problem:
            print(f"compiled programs are not kept: {problem}", file=sys.stderr)
    return manifest


def compiled(bpf: Any, text: str, defines: dict[str, int], hooks: list[trial.Tried]) -> Any:
    """bcc's object for the programs with these hooks; it has loaded nothing."""
    chosen = dict(defines)
    if hooks:
        chosen["CAISSON_TRAMPOLINE"] = 1
        chosen.update({f"CAISSON_HOOK_{one.hook.upper()}": 1 for one in hooks})
    flags = [f"-D{name}={value}" for name, value in chosen.items()]
    bpf._trace_autoload = lambda self: None  # it would read all of /proc/kallsyms, and load one after the other
    return bpf(text=text, cflags=[*flags, "-Wno-unused-function", "-Wno-address-of-packed-member"])


def made(
    bpf: Any, text: str, defines: dict[str, int], points: tuple[str, ...], hooks: list[trial.Tried]
) -> dict[str, Any]:
    """Everything the kernel is to be given, as `stored` takes it."""
    functions = {point: f"raw_tracepoint__{point}" for point in points}
    functions |= {hooked.program_name(one): hooked.program_name(one) for one in hooks}
    functions |= {name: name for name in rules.PROGRAMS}

    def compile_text(part: str) -> Callable[[str], bytes]:
        programs = compiled(bpf, part, defines, hooks)
        return lambda name: bytes(programs.dump_func(name.encode()))

    programs, maps = parts.compiled(compile_text, text, functions)
    table = {str(number): struct.pack("QQ", *words).hex() for number, words in enumerate(rules.table()) if any(words)}
    return {
        "programs": programs,
        "maps": maps,
        "contents": {"rules": table},
        "points": list(points),
        "pinned": list(PINNED_MAPS),
        "stages": dict(rules.PROGRAMS),
    }


def in_kernel(
    found: dict[str, Any], hooks: list[trial.Tried]
) -> tuple[stored.Loaded, dict[str, int], dict[str, trial.Tried]]:
    """Loaded and attached: (what is held, links by name, hooks the kernel refuses now)."""
    try:
        loaded = stored.Loaded(found)
        loaded.load([*found["points"], *found["stages"]], found["stages"])
        links, refused = hooked.attach(loaded, hooks)
        return loaded, links if refused else links | loaded.attach(found["points"]), refused
    except OSError as problem:
        raise Refused(f"the kernel refused the programs: {problem.strerror or problem}") from problem


def main() -> int:
    parser = argparse.ArgumentParser(description="compile, load and pin the witness programs, then exit")
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--pins", type=Path, required=True, help="folder to make in a BPF file system")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--level", type=int, required=True, help="depth of box cgroups below the root")
    parser.add_argument("--tier", choices=TIERS, default=os.environ.get("CAISSON_TIER", "auto"))
    parser.add_argument("--cache", type=Path, help="folder to keep what was compiled in, under --key")
    parser.add_argument("--key", default="")
    parser.add_argument("--parent", type=int, help="process to end with")
    options = parser.parse_args()
    if options.parent:
        parts.end_with_parent(options.parent)
    try:
        cache = (options.cache, options.key) if options.cache else None
        manifest = load(options.sources, options.pins, options.level, options.tier, cache)
    except Refused as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        return 3
    part = options.manifest.with_suffix(".part")
    part.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    part.rename(options.manifest)
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
