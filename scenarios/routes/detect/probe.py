"""Prints everything a box can learn about being watched, one JSON line a question; standard library alone.

Two outputs of the same kind of box are equal byte for byte unless something shows, but for the lines of ``timing``,
which are samples to be compared as such. What differs between any two boxes, watched or not (inode numbers, device
numbers, addresses, the box's own name), is left out of the answers or put as its kind.
"""

import ctypes
import errno
import json
import os
import re
import resource
import signal
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = LIBC.ptrace.restype = ctypes.c_long
LIBC.prctl.restype = ctypes.c_int
VARIES = re.compile(r"^(Vm|Rss|Hugetlb|.*voluntary|Cpus_|Mems_|SigQ|FDSize|CoreDumping|THP|Threads|untag|x86_)")


def answer(question, said):
    print(json.dumps([question, said], ensure_ascii=True), flush=True)


def code(number):
    return errno.errorcode.get(number, str(number)) if number else "ok"


def call(number, *arguments):
    """Errno of a call by number, or ok."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return code(ctypes.get_errno()) if result < 0 else "ok"


def text(path, limit=1 << 20):
    """A file's text, or why there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = b""
            while len(data) < limit and (more := os.read(file, 1 << 16)):
                data += more
            return data.decode("utf-8", "backslashreplace")
        finally:
            os.close(file)
    except OSError as error:
        return code(error.errno)


def link(path):
    try:
        return plain(os.readlink(path))
    except OSError as error:
        return code(error.errno)


def plain(name):
    """Without inode numbers: every pipe is a pipe."""
    return re.sub(r"\[\d+\]", "[…]", name)


def entries(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return code(error.errno)


def status(pid):
    return [line for line in text(f"/proc/{pid}/status").splitlines() if not VARIES.match(line)]


def in_child(work):
    """What the work, done in a child of our own, returns as a small number."""
    child = os.fork()
    if not child:
        try:
            result = work()
        except BaseException:
            result = 99
        os._exit(result)
    ended = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else -os.WTERMSIG(ended)


def traceme():
    ctypes.set_errno(0)
    return ctypes.get_errno() if LIBC.ptrace(ctypes.c_long(0), 0, None, None) < 0 else 0


def attach(request):
    """Attach to a child by ptrace; the errno."""
    child = os.fork()
    if not child:
        time.sleep(10)
        os._exit(0)
    ctypes.set_errno(0)
    result = LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(child), None, None)
    wrong = ctypes.get_errno() if result < 0 else 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return code(wrong)


def mounts():
    """Every mount without its numbers: root, place, options, kind, source, options of the file system."""
    lines = []
    for line in text("/proc/self/mountinfo").splitlines():
        words = line.split()
        cut = words.index("-")
        options = re.sub(r"/proc/self/fd/\d+|fd=\d+", "…", words[-1])
        lines.append([plain(words[3]), words[4], words[5], words[6:cut], words[cut + 1], words[cut + 2], options])
    return lines


def processes():
    """Who else is there: number, parent, name, command line."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        line = text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        parent = re.search(r"PPid:\s+(\d+)", text(f"/proc/{pid}/status"))
        found.append([pid, int(parent[1]) if parent else None, text(f"/proc/{pid}/comm").strip(), line])
    return found


def symbols():
    """Names of kernel symbols that could be a witness's. Addresses are hidden anyway."""
    names = [line.split()[2] for line in text("/proc/kallsyms", 1 << 26).splitlines() if len(line.split()) > 2]
    return {
        "listed": len(names) > 0,
        "programs": sorted(name for name in names if re.match("bpf_prog_[0-9a-f]{16}_", name)),
    }


def signals():
    return {str(number): str(signal.getsignal(number)) for number in range(1, 65) if number not in (32, 33)}


def batches(work, times, count):
    """Nanoseconds per call of the work, of some batches."""
    samples = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        for _ in range(times):
            work()
        samples.append((time.perf_counter_ns() - begun) // times)
    return samples


def failing_open():
    try:
        os.open("/proc/nowhere", os.O_RDONLY)
    except OSError:
        pass


def child_process():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def program():
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def main():
    for pid in ("self", "1", "thread-self"):
        answer(f"status {pid}", status(pid))
    answer("tracer", re.search(r"TracerPid:\s+(\d+)", text("/proc/self/status"))[1])
    answer(
        "seccomp", {"mode": LIBC.prctl(21, 0, 0, 0, 0), "lines": re.findall(r"Seccomp.*", text("/proc/self/status"))}
    )
    answer("dumpable", LIBC.prctl(3, 0, 0, 0, 0))
    answer("ptrace me", code(in_child(traceme)))
    answer("ptrace attach", attach(16))
    answer("ptrace seize", attach(0x4206))
    answer("descriptors", {name: link(f"/proc/self/fd/{name}") for name in entries("/proc/self/fd")})
    answer("descriptors of init", entries("/proc/1/fd"))
    answer("environment", dict(sorted(os.environ.items())))
    answer("arguments", [sys.argv, link("/proc/self/exe"), link("/proc/self/cwd"), link("/proc/self/root")])
    answer("mounts", mounts())
    answer("folders", {path: entries(path) for path in ("/", "/dev", "/sys", "/sys/fs/bpf", "/run", "/tmp", "/agent")})
    answer("bpf", {str(command): call(321, command, bytes(128), 128) for command in (0, 5, 7, 11, 12, 13, 16, 23)})
    answer("perf", call(298, bytes(128), 0, -1, -1, 0))
    answer("kernel log", [call(103, 3, bytes(64), 64), text("/dev/kmsg", 1)])
    answer("modules", text("/proc/modules"))
    answer("symbols", symbols())
    answer("tracing", [entries("/sys/kernel/tracing"), entries("/sys/kernel/debug"), entries("/sys/kernel/security")])
    answer(
        "settings",
        {
            name: text(f"/proc/sys/{name}").strip()
            for name in (
                "kernel/bpf_stats_enabled",
                "kernel/unprivileged_bpf_disabled",
                "net/core/bpf_jit_enable",
                "net/core/bpf_jit_kallsyms",
                "kernel/yama/ptrace_scope",
                "kernel/kptr_restrict",
                "kernel/core_pattern",
                "kernel/perf_event_paranoid",
            )
        },
    )
    answer("processes", processes())
    answer("parent", [os.getppid(), text(f"/proc/{os.getppid()}/cmdline"), os.getpgid(0), os.getsid(0)])
    answer("cgroups", [text("/proc/self/cgroup"), text("/proc/1/cgroup"), entries("/sys/fs/cgroup")])
    answer("namespaces", {name: link(f"/proc/self/ns/{name}") for name in entries("/proc/self/ns")})
    answer(
        "maps",
        sorted(
            {
                f"{words[1]} {words[5]}"
                for words in (line.split(None, 5) for line in text("/proc/self/maps").splitlines())
                if len(words) == 6
            }
        ),
    )
    answer("limits", text("/proc/self/limits"))
    answer(
        "priority",
        [
            os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getscheduler(0),
            sorted(os.sched_getaffinity(0)),
            text("/proc/self/oom_score_adj"),
            text("/proc/self/timerslack_ns"),
        ],
    )
    answer("signals", signals())
    answer("personality", LIBC.personality(ctypes.c_ulong(0xFFFFFFFF)))
    answer("labels", [text("/proc/self/attr/current"), text("/proc/self/loginuid"), text("/proc/self/sessionid")])
    answer("sockets", {name: text(f"/proc/net/{name}").count("\n") for name in ("unix", "tcp", "netlink", "packet")})
    answer("wait channel", text("/proc/self/wchan"))
    answer("keys", [text("/proc/keys"), text("/proc/key-users")])
    answer("memory locked", resource.getrlimit(resource.RLIMIT_MEMLOCK))
    answer("timing empty call", batches(os.getppid, 2000, 15))
    answer("timing failing open", batches(failing_open, 300, 15))
    answer("timing fork", batches(child_process, 10, 9))
    answer("timing program", batches(program, 5, 9))


main()
