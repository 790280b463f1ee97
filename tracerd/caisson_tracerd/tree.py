"""The kernel's types as C, and the smallest source tree that bcc accepts, made of them.

Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

BTF = Path("/sys/kernel/btf/vmlinux")
TREES = "caisson-types-"

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
TYPES_HEAD = (
    '#define BPF_NO_PRESERVE_ACCESS_INDEX\n#pragma clang diagnostic ignored "-Wvisibility"\n'
    '#pragma clang diagnostic ignored "-Wmissing-declarations"\n'  # structures within structures, from 6.19 on
)


class Refused(Exception):
    """One line for a person."""


def kernel_types() -> str:
    """The running kernel's types as C."""
    return Dump().types()


class Dump:
    """bpftool, at it; it writes while we do other things."""

    def __init__(self) -> None:
        if not BTF.exists():
            raise Refused(f"this kernel has no BTF at {BTF}; it needs CONFIG_DEBUG_INFO_BTF")
        tool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin")
        if tool is None:
            raise Refused("bpftool is missing; install the package bpftool")
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by types()
        command = [tool, "btf", "dump", "file", str(BTF), "format", "c"]
        self._process = subprocess.Popen(command, stdout=self._file, stderr=subprocess.PIPE, text=True)

    def types(self) -> str:
        """What it said."""
        with self._file, self._process:
            _, problem = self._process.communicate()
            if self._process.returncode:
                raise Refused(f"bpftool could not read {BTF}: {problem.strip().splitlines()[:1]}")
            self._file.seek(0)
            return self._file.read()


def library() -> bytes:
    """bcc's own library, in which the headers lie that it compiles every text with."""
    mapped = Path("/proc/self/maps").read_text()
    found = re.search(r"(/\S+/libbcc\.so\S*)", mapped)
    return Path(found.group(1)).read_bytes() if found else b""


def helpers_missing(types: str) -> str:
    """Names of helpers that bcc's header speaks of and an older kernel lacks, as numbers that no kernel accepts."""
    names = set(re.findall(rb"BPF_FUNC_(\w+)", library()))
    known = set(re.findall(r"BPF_FUNC_(\w+) =", types))
    return "".join(f"#define BPF_FUNC_{name} 0x7ffffff\n" for name in sorted({n.decode() for n in names} - known))


def own_headers() -> str:
    """bcc's headers."""
    chunks = [chunk for chunk in library().split(b"\0") if len(chunk) > 1000 and b"\n#" in chunk]
    return b"\n".join(chunks).decode("ascii", "replace")


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
