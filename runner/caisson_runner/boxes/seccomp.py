"""The filter every process of a box runs under, exported as a BPF program.

An allow-list. What is not on it answers ENOSYS, so that programs fall back as on an older kernel; what is refused on
purpose answers EPERM. `REASONS` says why, and a scenario can ask for a refused group by name (``allow``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from typing import Any, Final

from caisson_runner.boxes.errors import RequestError, ToolMissing

REASONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "bpf": ("kernel programs and counters", ("bpf", "perf_event_open", "lookup_dcookie")),
    "io_uring": (
        "opens and connects no system call witness sees",
        ("io_uring_setup", "io_uring_enter", "io_uring_register"),
    ),
    "keyring": ("one keyring per uid, shared by boxes", ("add_key", "request_key", "keyctl")),
    "userfaultfd": ("makes kernel races certain", ("userfaultfd",)),
    "mount": (
        "the box's view of files is fixed",
        (
            "mount", "umount2", "umount", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
            "fsmount", "fspick", "mount_setattr", "quotactl", "quotactl_fd", "swapon", "swapoff",
        ),
    ),
    "namespaces": ("a nested user namespace brings every capability back", ("setns",)),
    "kernel": (
        "the machine's own",
        (
            "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "reboot",
            "acct", "syslog", "iopl", "ioperm", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime",
            "sethostname", "setdomainname", "vhangup", "uselib", "nfsservctl", "_sysctl", "sysfs", "ustat",
        ),
    ),
    "handles": ("opens without a name", ("open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark")),
    "numa": ("moves other processes' memory", ("move_pages", "migrate_pages")),
    "families": (
        "sockets that no network namespace confines (vsock, packet, alg), and transports hardly used (SCTP, DCCP, "
        "UDP-Lite, MPTCP, ping); answered ENOSYS",
        (),
    ),
    "compat32": ("32-bit and x32 calls have other numbers than this table; answered ENOSYS", ()),
}  # fmt: skip
"""Groups refused with EPERM: name to (reason, system calls)."""

# ptrace, process_vm_* and pidfd_getfd stay: debuggers and strace are honest tools, the pid namespace holds only the
# box's own processes, and a filter cannot be left through a tracer since Linux 4.8.
_ALLOWED: Final = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres
clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2
fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork
fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage
getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1
inotify_rm_watch ioctl ioprio_get ioprio_set kcmp kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat
madvise map_shadow_stack mbind membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap
mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget
msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause personality pidfd_getfd
pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2
prlimit64 process_madvise process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr rename
renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
set_mempolicy set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt
shmget shutdown sigaltstack signalfd signalfd4 splice stat statfs statmount listmount statx symlink symlinkat sync
sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes
vfork vmsplice wait4 waitid write writev
""".split()  # noqa: SIM905 - a list of 350 quoted names is no easier to read

NEW_NAMESPACES: Final = 0x7E020000
"""Every CLONE_NEW* bit of clone(2); CLONE_NEWTIME (0x80) is none there."""
_NEW_TIME: Final = 0x80
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _RAW = 1, 2, 3
_KIND_MASK: Final = 0xF
"""Above it lie SOCK_CLOEXEC and SOCK_NONBLOCK."""
_INTERNET: Final = ((_STREAM, 0), (_STREAM, 6), (_DGRAM, 0), (_DGRAM, 17))
"""(type, protocol) of IPv4 and IPv6: TCP and UDP. Programs can do without SCTP, DCCP, UDP-Lite, MPTCP and ping sockets
(which a Docker daemon opens to everybody), and each is kernel surface. Raw sockets go on to the kernel, whose answer
(no right) programs understand."""


def _checked(allow: Collection[str]) -> None:
    if unknown := set(allow) - REASONS.keys():
        raise RequestError(f"no system call group {min(unknown)!r}; there are {', '.join(REASONS)}")


def profile(allow: Collection[str] = ()) -> dict[str, Any]:
    """The same table as a profile for ``docker run --security-opt seccomp=``, for what runc itself starts."""
    _checked(allow)
    rules: list[dict[str, Any]] = []

    def rule(names: Collection[str], refused: bool = False, *conditions: tuple[int, str, int, int]) -> None:
        one: dict[str, Any] = {"names": sorted(names), "action": "SCMP_ACT_ERRNO" if refused else "SCMP_ACT_ALLOW"}
        if refused:
            one["errnoRet"] = errno.EPERM
        if conditions:
            one["args"] = [
                {"index": index, "op": f"SCMP_CMP_{operator}", "value": value, "valueTwo": second}
                for index, operator, value, second in conditions
            ]
        rules.append(one)

    rule(_ALLOWED)
    for group, (_, names) in REASONS.items():
        rule(names, group not in allow)
    if "namespaces" in allow:
        rule(("clone", "clone3", "unshare"))
    else:
        rule(("clone",), False, (0, "MASKED_EQ", NEW_NAMESPACES, 0))
        rule(("unshare",), False, (0, "MASKED_EQ", NEW_NAMESPACES | _NEW_TIME, 0))
        # Docker before 23 does not know defaultErrnoRet, and libc goes back to clone on ENOSYS alone.
        rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    if "families" in allow:
        rule(("socket",))
    else:
        rule(("socket",), False, (0, "EQ", _AF_UNIX, 0))
        for family in (_AF_INET, _AF_INET6):
            rule(("socket",), False, (0, "EQ", family, 0), (1, "MASKED_EQ", _KIND_MASK, _RAW))
            for kind, protocol in _INTERNET:
                rule(
                    ("socket",), False, (0, "EQ", family, 0), (1, "MASKED_EQ", _KIND_MASK, kind), (2, "EQ", protocol, 0)
                )
        rule(("socket",), False, (0, "EQ", _AF_NETLINK, 0), (2, "EQ", 0, 0))
    rule(("socketpair",), False, (0, "EQ", _AF_UNIX, 0))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": ["SCMP_ARCH_X86_64", *(("SCMP_ARCH_X86", "SCMP_ARCH_X32") if "compat32" in allow else ())],
        "syscalls": rules,
    }


def answer(call: str, family: int = 0, kind: int = 0, protocol: int = 0, allow: Collection[str] = ()) -> int | None:
    """Errno this filter itself gives a call by its name (of sockets also the arguments); None where the kernel decides.

    Flags of clone and unshare are taken to ask for a new namespace.
    """
    for group, (_, names) in REASONS.items():
        if call in names:
            return None if group in allow else errno.EPERM
    if call in ("clone", "unshare", "clone3"):
        return None if "namespaces" in allow else errno.ENOSYS
    if call == "socketpair":
        return None if family == _AF_UNIX else errno.ENOSYS
    if call == "socket":
        kind &= _KIND_MASK
        internet = family in (_AF_INET, _AF_INET6) and (kind == _RAW or (kind, protocol) in _INTERNET)
        known = family == _AF_UNIX or internet or (family == _AF_NETLINK and protocol == 0)
        return None if known or "families" in allow else errno.ENOSYS
    return None if call in _ALLOWED else errno.ENOSYS


def build(allow: Collection[str] = ()) -> bytes:
    """The filter for this machine's native ABI; every other one (32-bit, x32) answers ENOSYS.

    ``allow`` names groups of `REASONS` this box may use. Raises ToolMissing without libseccomp.
    """
    try:
        import pyseccomp as lib
    except (ImportError, OSError, RuntimeError) as problem:
        raise ToolMissing(f"libseccomp cannot be loaded ({problem}); install the package libseccomp2") from problem
    _checked(allow)
    table = lib.SyscallFilter(lib.ERRNO(errno.ENOSYS))
    table.set_attr(lib.Attr.ACT_BADARCH, lib.ALLOW if "compat32" in allow else lib.ERRNO(errno.ENOSYS))
    try:
        table.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # binary tree instead of a chain of comparisons
    except OSError:
        pass  # libseccomp before 2.5

    def rule(action: int, name: str, *conditions: Any) -> None:
        try:
            table.add_rule(action, name, *conditions)
        except (OSError, ValueError):
            pass  # this libseccomp or this architecture does not know the call: the default refuses it

    for name in _ALLOWED:
        rule(lib.ALLOW, name)
    for group, (_, names) in REASONS.items():
        for name in names:
            rule(lib.ALLOW if group in allow else lib.ERRNO(errno.EPERM), name)
    if "namespaces" in allow:
        for name in ("clone", "clone3", "unshare"):
            rule(lib.ALLOW, name)
    else:
        for name, mask in (("clone", NEW_NAMESPACES), ("unshare", NEW_NAMESPACES | _NEW_TIME)):
            rule(lib.ALLOW, name, lib.Arg(0, lib.MASKED_EQ, mask, 0))
        # clone3 passes its flags in memory, where no filter looks: the default, ENOSYS, sends libc back to clone.
    if "families" in allow:
        rule(lib.ALLOW, "socket")
    else:
        rule(lib.ALLOW, "socket", lib.Arg(0, lib.EQ, _AF_UNIX))
        for family in (_AF_INET, _AF_INET6):
            which = lib.Arg(0, lib.EQ, family)
            rule(lib.ALLOW, "socket", which, lib.Arg(1, lib.MASKED_EQ, _KIND_MASK, _RAW))
            for kind, protocol in _INTERNET:
                same_kind = lib.Arg(1, lib.MASKED_EQ, _KIND_MASK, kind)
                rule(lib.ALLOW, "socket", which, same_kind, lib.Arg(2, lib.EQ, protocol))
        rule(lib.ALLOW, "socket", lib.Arg(0, lib.EQ, _AF_NETLINK), lib.Arg(2, lib.EQ, 0))
    rule(lib.ALLOW, "socketpair", lib.Arg(0, lib.EQ, _AF_UNIX))
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        table.export_bpf(file)
        file.seek(0)
        return file.read()
