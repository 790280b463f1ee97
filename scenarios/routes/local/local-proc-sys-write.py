"""local-proc-sys-write: The kernel's own settings, and the programs it starts by name.

Does: opens each for writing, and closes it; nothing is ever written. Must happen: none opens.
"""

import errno
import json
import os
import sys

ROUTE = "local-proc-sys-write"
NONCE, CASE, WORLD = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
TRIES = []


def tried(event, op, **facts):
    """One try and the kernel's answer; bytes become hex."""
    TRIES.append({"event": event, "op": op, "pid": os.getpid(), **facts})


def end(word="performed", reason="", **saw):
    """The one line: everything tried, and what came back."""
    facts = {"end": word, "reason": reason, "tries": TRIES, "saw": saw}
    print(json.dumps({"route": ROUTE, "case": CASE, **facts}, default=bytes.hex), flush=True)
    if WORLD.get("role") == "sibling":
        sys.stdin.read()
    os._exit(0)


def open_only(path, flags):
    """Open, and close at once: the errno. Nothing is ever written."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return error.errno
    tried("open", "openat", path=os.fsencode(path), errno=0)
    return 0


paths = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/panic",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/bus/pci",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/proc/acpi/wakeup",
    "/proc/scsi/scsi",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/ping_group_range",
    "/proc/sys/user/max_user_namespaces",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/debug/x",
    "/sys/kernel/security/apparmor/.load",
    "/sys/power/state",
    "/sys/module/kernel/parameters/panic",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/port",
    "/dev/sda",
    "/dev/vda",
    "/dev/loop-control",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/vsock",
    "/dev/vhost-vsock",
    "/dev/net/tun",
    "/dev/uinput",
]
opened = [path for path in paths if not open_only(path, os.O_WRONLY)]
end(tried=len(paths), leaks=opened)
