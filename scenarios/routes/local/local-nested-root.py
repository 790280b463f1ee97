"""local-nested-root: Rights it could win back: programs that give rights, capabilities, a chroot, a mount.

Does: the case's call. Must happen: refused; nothing it starts gets more than it has.
"""

import ctypes
import errno
import json
import os
import sys

ROUTE = "local-nested-root"
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


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


def read_file(path, limit=1 << 20):
    """What a file holds, or nothing; either way it is in the tries."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        tried("open", "openat", path=os.fsencode(path), errno=error.errno)
        return b""
    tried("open", "openat", path=os.fsencode(path), errno=0)
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def status(answer):
    """The status of an HTTP answer, 0 without one."""
    words = answer.split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


if CASE == "mount":
    result = call(165, ctypes.c_char_p(b"none"), ctypes.c_char_p(b"/tmp"), ctypes.c_char_p(b"tmpfs"), 0, 0)
    tried("change", "mount", path2=b"/tmp", errno=max(0, -result))
    end(errno=max(0, -result), leaks=["a mount"] if result == 0 else [])
if CASE == "chroot":
    wrong = attempt(os.chroot, "/tmp")
    tried("cross", "chroot", path=b"/tmp", errno=wrong)
    end(errno=wrong, leaks=["a chroot"] if not wrong else [])
if CASE == "capabilities":
    lines = read_file("/proc/self/status").decode().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    held = [
        f"{name} {facts[name]}" for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(facts[name], 16)
    ]
    if facts["NoNewPrivs"] != "1" or facts["Seccomp"] != "2":
        held.append("privileges can be gained")
    end(leaks=held)
ranges = [line.split() for line in read_file("/proc/self/uid_map").decode().splitlines()]
same = any(inner == outer == "0" and int(size) > 1 for inner, outer, size in ranges)
end(map=ranges, leaks=["the box's root is the host's"] if same else [])
