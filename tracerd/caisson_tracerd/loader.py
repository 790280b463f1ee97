#!/usr/bin/python3
"""The one-shot loader: compile, load, attach, pin, write the manifest, exit.

Runs on the distribution's own Python, because bcc comes from the distribution; standard library and bcc only, and
of this package only ``btf.py``, ``rules.py`` and ``trial.py``. The daemon starts it as a child and never holds bcc
itself.

No kernel headers are used: with headers of another version bcc compiles, loads and silently reads garbage. A small
source tree is made from the kernel's own BTF instead, so the types are the running kernel's.

Exit codes: 0 done; 3 refused, with one line on standard error.
"""

import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # on its own, beside its neighbour and without the package
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import rules  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import stored  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import trial  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    from btf import Btf, BtfError  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
else:
    from caisson_tracerd import rules, stored, trial
    from caisson_tracerd.btf import Btf, BtfError

BTF = Path("/sys/kernel/btf/vmlinux")
OVERLAY_BTF = Path("/sys/kernel/btf/overlay")
API = 1
TREES = "caisson-types-"
TIERS = ("auto", "trampoline", "tracepoint")
HOOKS = (
    "sys_enter", "sys_exit", "sched_process_fork", "sched_process_exec", "sched_process_exit", "inet_sock_set_state",
    "cgroup_attach_task",
)  # fmt: skip
PINNED_MAPS = ("boxes", "rings", "levels", "stages")
OPTIONAL = re.compile(r"(io_\w+|ovl_inode)__\w+|cgroup__ancestor\w*")
"""Members that some kernels lack; the sources ask ``#ifdef CAISSON_HAS_…`` or for what they belong to."""

KCONFIG = """#pragma once
#define CONFIG_BPF_SYSCALL 1
#define PAGE_SIZE 4096
#define __always_inline inline __attribute__((always_inline))
#define _UAPI__LINUX_BPF_H__
#define __LINUX_BPF_H__
#include <vmlinux.h>
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
"""
VERSION = """#pragma once
#define KERNEL_VERSION(a,b,c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5,10,0)
"""
EMPTY = (
    "include/linux/log2.h",
    "include/asm/page.h",
    "include/uapi/linux/if_packet.h",
    "include/uapi/linux/if_ether.h",
    "include/uapi/linux/ptrace.h",
    "include/uapi/linux/bpf.h",
    "include/linux/bpf.h",
    "include/linux/types.h",
    "include/linux/bpf_common.h",
)
FOLDERS = ("include/generated/uapi", "arch/x86/include/generated", "arch/x86/include/uapi")
TYPES_HEAD = '#define BPF_NO_PRESERVE_ACCESS_INDEX\n#pragma clang diagnostic ignored "-Wvisibility"\n'


class Refused(Exception):
    """One line for a person."""


def kernel_types() -> str:
    """The running kernel's types as C."""
    if not BTF.exists():
        raise Refused(f"this kernel has no BTF at {BTF}; it needs CONFIG_DEBUG_INFO_BTF")
    tool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
    if tool is None:
        raise Refused("bpftool is missing; install the package bpftool")
    dump = subprocess.run([tool, "btf", "dump", "file", str(BTF), "format", "c"], capture_output=True, text=True)
    if dump.returncode:
        raise Refused(f"bpftool could not read {BTF}: {dump.stderr.strip().splitlines()[:1]}")
    return dump.stdout


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


def helpers_missing(types: str) -> str:
    """Names of helpers that bcc's header speaks of and an older kernel lacks, as numbers that no kernel accepts."""
    mapped = Path("/proc/self/maps").read_text()
    found = re.search(r"(/\S+/libbcc\.so\S*)", mapped)
    names = set(re.findall(rb"BPF_FUNC_(\w+)", Path(found.group(1)).read_bytes())) if found else set()
    known = set(re.findall(r"BPF_FUNC_(\w+) =", types))
    return "".join(f"#define BPF_FUNC_{name} 0x7ffffff\n" for name in sorted({n.decode() for n in names} - known))


def write_source_tree(root: Path, types: str) -> None:
    """The smallest kernel source tree bcc accepts."""
    files = {
        "include/vmlinux.h": TYPES_HEAD + types,
        "include/linux/kconfig.h": KCONFIG,
        "include/linux/version.h": VERSION,
    }
    files.update(dict.fromkeys(EMPTY, "#pragma once\n"))
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def source_files(folder: Path) -> list[Path]:
    """Every source, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".c", ".h"))


def source_digest(folder: Path) -> dict[str, str]:
    """sha256 of each source by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in source_files(folder)
    }


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


def fill(bpf: Any, programs: Any) -> None:
    """The table of calls, and the programs the others call."""
    import ctypes

    calls = programs[b"rules"]
    for number, words in enumerate(rules.table()):
        if any(words):
            leaf = calls.Leaf()
            leaf.word[0], leaf.word[1] = words
            calls[ctypes.c_uint32(number)] = leaf
    stages = programs[b"stages"]
    for name, number in rules.PROGRAMS.items():
        function = programs.load_func(name.encode(), bpf.RAW_TRACEPOINT)
        stages[ctypes.c_int(number)] = ctypes.c_int(function.fd)


def fields_used(text: str) -> set[tuple[str, str]]:
    """(structure, member) of every READ, READ_PLACE and OFFSET in the sources."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = {(owner, member) for owner, member in re.findall(r"\bREAD\([^,]+, (\w+), [^,]+, (\w+)\)", plain)}
    found |= {(owner, member) for owner, member in re.findall(r"\bOFFSET\((\w+), (\w+)\)", plain)}
    for owner, member in re.findall(r"\bREAD_PLACE\([^,]+, (\w+), [^,]+, (\w+)\)", plain):
        found |= {(owner, f"{member}__{part}") for part in ("mnt", "dentry")}
    return {(owner, member) for owner, member in found if owner != "type"}


def sweep_trees() -> None:
    """Remove the source trees of loaders that were killed; a living loader holds a lock on its own."""
    for tree in Path(tempfile.gettempdir()).glob(f"{TREES}*"):
        try:
            handle = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(tree, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def load(
    sources: Path, pins: Path, level: int, tier: str = "auto", cache: tuple[Path, str] | None = None
) -> dict[str, Any]:
    """Compile, load, attach and pin everything; returns the manifest."""
    started = time.monotonic()
    types = kernel_types()
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
    sweep_trees()
    with tempfile.TemporaryDirectory(prefix=TREES) as root:
        in_use = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(in_use, fcntl.LOCK_EX)  # until this process ends: what nobody holds is a killed loader's
        os.environ["BCC_KERNEL_SOURCE"] = root
        try:
            from bcc import BPF  # pyright: ignore[reportMissingImports]
            from bcc import __version__ as bcc_version  # pyright: ignore[reportMissingImports]
            from bcc.libbcc import lib  # pyright: ignore[reportMissingImports]
        except ImportError as problem:
            raise Refused(f"bcc is missing ({problem}); install the package python3-bpfcc") from None
        write_source_tree(Path(root), types + helpers_missing(types))
        while True:
            hooks = [one for one in tried if one.ok]
            if tier == "trampoline" and not hooks:
                raise Refused(f"the trampoline tier does not work here: {trial.why_none(tried)}")
            programs = compiled(BPF, text, defines, hooks)
            links, refused = attach_hooks(programs, hooks)
            if not refused:
                break
            tried = [refused.get(one.hook, one) for one in tried]
    points = tracepoints(defines)
    hooks_of = {hook: f"raw_tracepoint__{hook}" for hook in points} | {hook: hook for hook in links}
    names = hooks_of | {name: name for name in rules.PROGRAMS}
    code = {hook: programs.dump_func(name.encode()) for hook, name in names.items()}
    links.update({hook: programs.raw_tracepoint_fds[hook.encode()] for hook in points})
    pin(lib, programs, links, pins)
    manifest = {
        "api": API,
        "tier": "trampoline" if hooks else "tracepoint",
        "tier_reason": "" if hooks else trial.why_none(tried),
        "trampoline": [one.as_dict() for one in tried],
        "hooks": list(hooks_of),
        "sources": source_digest(sources),
        "bytecode_sha256": {hook: hashlib.sha256(found).hexdigest() for hook, found in code.items()},
        "instructions": {hook: len(found) // 8 for hook, found in code.items()},
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "btf_sha256": hashlib.sha256(BTF.read_bytes()).hexdigest(),
        "bcc": bcc_version,
        "definitions": {name: value for name, value in defines.items() if "_SIZE_" not in name},
        "maps": {name: {"entries": programs[name.encode()].max_entries} for name in PINNED_MAPS},
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pins": str(pins),
        "load_seconds": round(time.monotonic() - started, 3),
    }
    if cache is not None and not hooks:
        try:
            stored.save(cache[0], cache[1], manifest, hooks_of, code, PINNED_MAPS, rules.PROGRAMS)
        except OSError as problem:
            print(f"compiled programs are not kept: {problem}", file=sys.stderr)
    return manifest


def compiled(bpf: Any, text: str, defines: dict[str, int], hooks: list[trial.Tried]) -> Any:
    """The programs with these hooks; the tracepoints are loaded and attached."""
    chosen = dict(defines)
    if hooks:
        chosen["CAISSON_TRAMPOLINE"] = 1
        chosen.update({f"CAISSON_HOOK_{one.hook.upper()}": 1 for one in hooks})
    flags = [f"-D{name}={value}" for name, value in chosen.items()]
    try:
        programs = bpf(text=text, cflags=[*flags, "-Wno-unused-function", "-Wno-address-of-packed-member"])
        fill(bpf, programs)
        return programs
    except Exception as problem:
        raise Refused(f"the kernel or bcc refused the programs: {problem}") from problem


def program_name(one: trial.Tried) -> str:
    """A hook's function in the sources. bcc attaches by itself what begins with ``lsm__``, so these do not."""
    return f"{'fexit' if one.how == 'fexit' else 'security'}__{one.hook}"


def attach_hooks(programs: Any, hooks: list[trial.Tried]) -> tuple[dict[str, int], dict[str, trial.Tried]]:
    """(links by name, hooks whose program the kernel refuses now). What is refused is left out of the next try."""
    kernel = trial.Kernel()
    links, refused = {}, {}
    for one in hooks:
        name = program_name(one)
        try:
            program = kernel.load(programs.dump_func(name.encode()), one.how, one.number, one.hook)
            links[name] = kernel.attach(program)
            os.close(program)
        except OSError as problem:
            reason = f"the verifier refuses the program: {problem.strerror}"
            try:  # once more, for what it says
                os.close(kernel.load(programs.dump_func(name.encode()), one.how, one.number, one.hook, log=True))
            except OSError as told:
                reason = f"the verifier refuses the program: {told.strerror}"
            refused[one.hook] = replace(one, ok=False, reason=reason)
    if refused:
        for link in links.values():
            os.close(link)
    return links, refused


def pin(lib: Any, programs: Any, links: dict[str, int], pins: Path) -> None:
    """All or nothing: links and maps under one folder."""
    (pins / "boxes_rings").mkdir(parents=True, mode=0o700)
    wanted = {f"map_{name}": programs[name.encode()].map_fd for name in PINNED_MAPS}
    wanted.update({f"link_{hook}": link for hook, link in links.items()})
    for name, descriptor in wanted.items():
        if lib.bpf_obj_pin(descriptor, str(pins / name).encode()) != 0:
            remove_pins(pins)
            raise Refused(f"{pins / name} could not be pinned; is a BPF file system mounted there?")


def remove_pins(pins: Path) -> None:
    """Unpin everything below; the kernel detaches what nobody holds."""
    for top, folders, files in os.walk(pins, topdown=False):
        for name in files:
            (Path(top) / name).unlink()
        for name in folders:
            (Path(top) / name).rmdir()
    pins.rmdir()


def end_with_parent(parent: int) -> None:
    """A daemon that is killed while it waits for us must find nothing half made later on."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was killed before we came here
        os._exit(3)


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
        end_with_parent(options.parent)
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
