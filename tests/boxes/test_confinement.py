"""What a box cannot do or see."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from caisson_runner.boxes.engine import Bind, Command
from caisson_runner.boxes.store import BOX_UID

CALLS = r"""
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(number, *arguments) >= 0:
        return "done"
    return errno.errorcode[ctypes.get_errno()]
void = ctypes.create_string_buffer(256)
NEWUSER, NEWNS = 0x10000000, 0x20000
print(json.dumps({
    "bpf": call(321, 0, void, 128), "io_uring_setup": call(425, 1, void), "keyctl": call(250, 0, -3, 0),
    "add_key": call(248, b"user", b"x", b"y", 1, -3), "request_key": call(249, b"user", b"x", None, 0),
    "userfaultfd": call(323, 1), "perf_event_open": call(298, void, 0, -1, -1, 0), "kexec_load": call(246, 0, 0, 0, 0),
    "init_module": call(175, void, 1, b""), "mount": call(165, b"x", b"/tmp", b"tmpfs", 0, 0),
    "open_tree": call(428, -100, b"/", 1), "pivot_root": call(155, b"/", b"/"), "chroot": call(161, b"/"),
    "setns": call(308, 0, 0), "unshare user": call(272, NEWUSER), "unshare mount": call(272, NEWNS),
    "clone user": call(56, NEWUSER | 17, 0, 0, 0, 0), "clone3": call(435, void, 88),
    "open_by_handle_at": call(304, -100, void, 0), "vsock": call(41, 40, 1, 0), "packet": call(41, 17, 3, 0),
    "alg": call(41, 38, 5, 0), "netfilter": call(41, 16, 3, 12), "x32 getpid": call(0x40000000 + 39),
}))
"""
INT80 = r"""
import ctypes, mmap
code = bytes([0x53, 0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0x5B, 0xC3])  # push rbx; mov eax, getpid; int 0x80; pop rbx; ret
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print(function())
"""


async def test_box_has_no_privilege_and_cannot_gain_any(engine, snapshot, sh):
    async with engine.fork(snapshot) as box:
        done = await sh(
            box, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; find / -xdev -perm /6000 2>/dev/null"
        )
    fields = dict(line.split(":\t") for line in done.stdout.decode().splitlines())
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0000000000000000"}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


async def test_init_of_the_box_has_no_privilege_and_no_descriptor_either(engine, snapshot):
    async with engine.fork(snapshot) as box:
        status = Path(f"/proc/{box.init_pid}/status").read_text()
        fields = dict(line.split(":\t") for line in status.splitlines())
        assert fields["CapEff"] == fields["CapBnd"] == "0000000000000000"
        assert fields["Seccomp"] == "2"
        for _ in range(100):  # it says that it is there, then closes them
            if not list(Path(f"/proc/{box.init_pid}/fd").iterdir()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the init keeps descriptors")


async def test_dangerous_system_calls_are_refused(engine, snapshot, py):
    async with engine.fork(snapshot) as box:
        done = await py(box, CALLS)
    results = json.loads(done.stdout)
    assert {name: result for name, result in results.items() if result not in ("EPERM", "ENOSYS")} == {}


async def test_32_bit_calls_are_refused(engine, snapshot, py):
    async with engine.fork(snapshot) as box:
        done = await py(box, INT80)
    assert done.stdout.strip() == b"-38"  # -ENOSYS


async def test_a_group_of_calls_can_be_allowed_by_name(make_engine, store, snapshot, py):
    async with make_engine(store, allow=("io_uring",)) as engine, engine.fork(snapshot) as box:
        results = json.loads((await py(box, CALLS)).stdout)
    assert (
        results["io_uring_setup"] == "EFAULT"
        or results["io_uring_setup"] == "EINVAL"
        or (results["io_uring_setup"] == "done")
    )
    assert results["bpf"] == "EPERM"


async def test_debuggers_work_inside(engine, snapshot, sh):
    if not Path("/usr/bin/strace").exists():
        pytest.skip("strace is not installed")
    async with engine.fork(snapshot) as box:
        done = await sh(box, "strace -f -e trace=execve /bin/true")
    assert done.ok and b'execve("/bin/true"' in done.stderr


async def test_network_is_lo_alone_and_lo_works(engine, snapshot, py):
    source = """
import socket, os
print([name for _, name in socket.if_nameindex()])
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname()).close()
try: socket.create_connection(('192.0.2.1', 80), 1)
except OSError as problem: print(problem.errno)
"""
    async with engine.fork(snapshot) as box:
        done = await py(box, source)
    assert done.stdout.split() == [b"['lo']", b"101"], done


async def test_host_files_and_processes_are_invisible(engine, snapshot, sh, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    async with engine.fork(snapshot) as box:
        done = await sh(
            box, f"cat {secret} /etc/shadow /proc/1/environ; ls / /home /sys /run /var/lib; ls -d /proc/[0-9]*"
        )
        assert b"host secret" not in done.stdout
        assert b"shadow" in done.stderr  # no such file
        listed = done.stdout.decode().split()
    expected = [
        "agent",
        "app",
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "lib64",
        "logs",
        "proc",
        "root",
        "run",
        "sbin",
        "solution",
        "tests",
        "tmp",
        "usr",
        "var",
    ]
    assert set(listed) >= set(expected)
    shown = {int(word[6:]) for word in listed if word.startswith("/proc/")}
    assert 1 in shown and len(shown) <= 4 and max(shown) < 20  # runc's own steps use up a few numbers
    assert not {"mnt", "opt", "srv", "boot", "work"} & set(listed)


async def test_host_environment_and_descriptors_do_not_leak(make_engine, engine, snapshot, sh, monkeypatch):
    monkeypatch.setenv("CAISSON_TEST_SECRET", "s3cret")
    leak = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        async with make_engine(engine.store) as other, other.fork(snapshot) as box:
            done = await sh(box, "env; ls -l /proc/self/fd; hostname; cat /proc/self/cgroup", env={"GIVEN": "yes"})
    finally:
        os.close(leak)
    text = done.stdout.decode()
    assert "s3cret" not in text and "GIVEN=yes" in text and "HOME=/root" in text
    assert "passwd" not in text
    assert "\nbox\n" in text
    assert "0::/\n" in text


async def test_box_root_is_nobody_on_the_host(engine, snapshot, root, kind):
    if kind == "docker":
        pytest.skip("docker: only a daemon with userns-remap does this; see tests/docker/test_remapped.py")
    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/bin/sleep", "60")))
        status = Path(f"/proc/{process.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        expected = BOX_UID if root else os.getuid()
        assert fields["Uid"].split() == [str(expected)] * 4
        if root:
            assert fields["Groups"].strip() == ""
        await process.kill()


async def test_kernel_settings_and_usr_are_read_only(engine, snapshot, sh):
    line = "echo 1 > /proc/sys/net/ipv4/ip_forward; touch /usr/bin/x; echo x > /dev/x; echo b > /proc/sysrq-trigger"
    async with engine.fork(snapshot) as box:
        done = await sh(box, f"{line}; touch /usr/local/bin/mine && ls /usr/local/bin; cat /proc/keys")
    assert done.stdout == b"mine\n"
    assert done.stderr.count(b"annot") >= 3


async def test_ids_of_the_box_are_fixed(engine, snapshot, sh):
    async with engine.fork(snapshot) as box:
        done = await sh(box, "id; cat /proc/self/uid_map; chown 1000 kept.txt")
    assert done.stdout.startswith(b"uid=0(root) gid=0(root)")
    assert len(done.stdout.splitlines()) == 2
    assert b"chown" in done.stderr


async def test_bind_is_visible_read_only_and_no_part_of_the_state(engine, snapshot, sh, tmp_path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/run.sh").write_text("echo from the host\n")
    binds = [Bind(tmp_path / "agent", "/agent"), Bind(tmp_path / "agent/run.sh", "/opt/tool.sh")]
    (tmp_path / "agent").chmod(0o755)
    async with engine.fork(snapshot, binds=binds) as box:
        done = await sh(box, "sh /agent/run.sh; sh /opt/tool.sh; echo x > /agent/run.sh; rm /agent/run.sh")
        changes = await box.diff()
    assert done.stdout == b"from the host\n" * 2
    assert done.stderr.count(b"ead-only") == 2
    assert [change.path for change in changes] == [b"opt"]
    assert (tmp_path / "agent/run.sh").exists()


async def test_init_cannot_be_used_to_run_something_outside_the_cgroup(engine, snapshot, py):
    source = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
names = []
for number, arguments in ((101, (16, 1, 0, 0)), (101, (0x4206, 1, 0, 0)), (438, (os.pidfd_open(1), 0, 0))):
    names.append('done' if libc.syscall(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()])
for name in ('mem', 'maps', 'root/etc', 'cwd'):
    look = os.listdir if name in ('root/etc', 'cwd') else lambda path: open(path, 'rb').read(1)
    try: look(f'/proc/1/{name}')
    except OSError as problem: names.append(errno.errorcode[problem.errno])
    else: names.append('done ' + name)
for number in (9, 15, 19):
    os.kill(1, number)
print(*names)
"""
    async with engine.fork(snapshot) as box:
        done = await py(box, source)
        assert set(done.stdout.split()) <= {b"EPERM", b"EACCES"}, done
        assert (await py(box, "print('the init lives')")).ok


async def test_runner_process_memory_is_out_of_reach(engine, snapshot, py):
    """A launched process waits at its gate as a copy of the holder; the box may not look into it."""
    async with engine.fork(snapshot) as box:
        spy = """
import os, time
seen = set()
end = time.time() + 3
while time.time() < end:
    for pid in os.listdir('/proc'):
        if pid.isdigit() and int(pid) > 1 and int(pid) != os.getpid():
            for name in ('mem', 'environ'):
                try:
                    open(f'/proc/{pid}/{name}', 'rb').read(1); seen.add((pid, name))
                except OSError: pass
            try: seen.add(os.readlink(f'/proc/{pid}/exe'))
            except OSError: pass
print(sorted(map(str, seen)))
"""
        watcher = await box.start(Command(("/usr/bin/python3", "-c", spy)))
        for _ in range(5):

            async def dawdle(pid: int) -> None:
                await asyncio.sleep(0.2)

            held = await box.exec(Command(("/bin/true",)), admit=dawdle)
            await held.wait()
        text = (await watcher.wait()).stdout.decode()
    assert str(sys.executable) not in text and "holder" not in text
