"""Single lines of strace, as it really wrote them, and anything else a box can make it write."""

from __future__ import annotations

import os
import socket

import pytest
from caisson_proto.record import Flag, Kind, Record, decode, encode
from caisson_runner.witness import strace_lines as lines
from caisson_runner.witness.strace_records import Process, Reading
from hypothesis import example, given, settings
from hypothesis import strategies as st

AT = b"1796033545.000000000 "


def read(*bodies: bytes, pid: int = 7, nested: bool = True) -> tuple[list[Record], Reading]:
    reading = Reading([Process(pid, 1, cwd=b"/app")], nested=nested)
    found = [
        one for body in bodies for one in reading.feed((body if body[:1].isdigit() else b"7 " + AT + body) + b"\n")
    ]
    return found + list(reading.finish()), reading


def one(body: bytes) -> Record:
    found, reading = read(body)
    assert not reading.unreadable, body
    assert len(found) == 1, body
    return found[0]


@pytest.mark.parametrize(
    ("body", "given", "resolved", "error", "flags"),
    [
        (b'openat(AT_FDCWD</app>, "a", O_RDONLY|O_CLOEXEC) = 3</app/a>', b"a", b"/app/a", 0, os.O_CLOEXEC),
        (b'openat(AT_FDCWD</app>, "/x", O_RDONLY) = -1 ENOENT (No such file or directory)', b"/x", None, 2, 0),
        (b'openat(5</usr>, "lib", O_RDONLY|O_PATH) = 7</usr/lib>', b"lib", b"/usr/lib", 0, os.O_PATH),
        (b'open("/n", O_RDWR|O_CREAT, 0600) = 3</dev/null<char 1:3>>', b"/n", b"/dev/null", 0, os.O_RDWR | os.O_CREAT),
        (b'creat("c", 0644) = 3</app/c>', b"c", b"/app/c", 0, os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
        (
            b'openat2(AT_FDCWD</app>, "/e", {flags=O_RDONLY, resolve=RESOLVE_BENEATH}, 24) = -1 EXDEV (Invalid)',
            b"/e", None, 18, 0,
        ),
        (
            rb'openat(AT_FDCWD</a>, "/t/\377\1<>\n\"7", O_WRONLY) = 4</t/\377\1\74\76\n\"7>',
            b'/t/\xff\x01<>\n"7', b'/t/\xff\x01<>\n"7', 0, os.O_WRONLY,
        ),
        (b'openat(AT_FDCWD</a>, ") = 3", O_RDONLY) = 4</a/) = 3>', b") = 3", b"/a/) = 3", 0, 0),
        (b'openat(AT_FDCWD</a>, "x <unfinished ...>", O_RDONLY) = 4</a/y>', b"x <unfinished ...>", b"/a/y", 0, 0),
        (b"openat(AT_FDCWD</a>, NULL, O_RDONLY) = -1 EFAULT (Bad address)", None, None, 14, 0),
        (b"openat(AT_FDCWD</a>, 0x7ffe12, O_RDONLY) = -1 EFAULT (Bad address)", None, None, 14, 0),
        (b'openat(AT_FDCWD</a>, "/proc/self/fd/11", O_RDONLY) = 13<pipe:[36545]>', b"/proc/self/fd/11",
         b"pipe:[36545]", 0, 0),
    ],
)  # fmt: skip
def test_open_is_read_to_the_byte(
    body: bytes, given: bytes | None, resolved: bytes | None, error: int, flags: int
) -> None:
    record = one(body)
    assert (record.kind, record.given, record.resolved, record.error, record.open_flags) == (
        Kind.OPEN, given, resolved, error, flags,
    )  # fmt: skip


def test_file_without_a_name_is_flagged() -> None:
    record = one(b'openat(AT_FDCWD</t>, "/tmp", O_RDWR|O_TMPFILE, 0777) = 8</tmp/#21>(deleted)')
    assert record.flags & Flag.DELETED
    assert record.resolved == b"/tmp/#21"


def test_failed_relative_open_says_where_it_was_tried() -> None:
    assert one(b'openat(5</usr>, "no", O_RDONLY) = -1 ENOENT (No)').cwd == b"/usr"
    (record,), _reading = read(b'chdir("../srv") = 0', b'open("no", O_RDONLY) = -1 ENOENT (No)')
    assert record.cwd == b"/srv"


@pytest.mark.parametrize(
    ("body", "addr", "args"),
    [
        (
            b'connect(3<TCP:[9]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("192.0.2.1")}, 16)'
            b" = -1 ENETUNREACH (Network is unreachable)",
            b"\x02\0\0P\xc0\0\x02\x01" + bytes(8), (2, 80, 6, 3, 1, 0),
        ),
        (
            b"connect(5<UDPv6:[9]>, {sa_family=AF_INET6, sin6_port=htons(53), sin6_flowinfo=htonl(0), "
            b'inet_pton(AF_INET6, "2001:db8::1", &sin6_addr), sin6_scope_id=0}, 28) = -1 ENETUNREACH (No)',
            b"\x0a\0\x005" + bytes(4) + socket.inet_pton(socket.AF_INET6, "2001:db8::1") + bytes(4),
            (10, 53, 17, 5, 2, 0),
        ),
        (rb'connect(4<UNIX-STREAM:[9]>, {sa_family=AF_UNIX, sun_path="/t/\n"}, 7) = -1 ENOENT (No)',
         b"\1\0/t/\n\0", (1, 0, 0, 4, 1, 0)),
        (b'connect(4<UNIX-DGRAM:[9]>, {sa_family=AF_UNIX, sun_path=@"abs"}, 6) = 0', b"\1\0\0abs", (1, 0, 0, 4, 2, 0)),
        (b"connect(4, NULL, 16) = -1 EFAULT (Bad address)", None, (0, 0, 0, 4, 0, 0)),
        (rb'connect(4, {sa_family=0x63 /* AF_??? */, sa_data="\0\1"}, 4) = -1 EAFNOSUPPORT (No)',
         b"\x63\0\0\1", (0x63, 0, 0, 4, 0, 0)),
    ],
)  # fmt: skip
def test_socket_address_is_rebuilt(body: bytes, addr: bytes | None, args: tuple[int, ...]) -> None:
    record = one(body)
    assert (record.addr, record.args) == (addr, args)


def test_exec_keeps_every_argument_and_its_errno() -> None:
    record = one(rb'execve("/no", ["", "a b", "\303\377\n", ""], ["A=1"]) = -1 ENOENT (No)')
    assert (record.argv, record.error, record.given) == ((b"", b"a b", b"\xc3\xff\n", b""), 2, b"/no")
    record = one(b'execve("/bin/x", ["x", "long"..., ...], 0x7ffc /* 3 vars */) = 0')
    assert record.flags & Flag.TRUNCATED
    record = one(b'execveat(4</usr/bin/true>, "", ["true"], [], AT_EMPTY_PATH) = 0')
    assert (record.resolved, record.comm) == (b"/usr/bin/true", b"true")


def test_exec_in_a_thread_takes_over_its_process() -> None:
    found, reading = read(
        b"clone3({flags=CLONE_VM|CLONE_THREAD, exit_signal=0} => {parent_tid=[2]}, 88) = 2 /* 8 in strace's PID NS */",
        b"8 " + AT + b'execve("/bin/true", ["true"], [] <pid changed to 7 ...>',
        b"+++ superseded by execve in pid 8 +++",
        b"<... execve resumed>) = -1 (errno 18446744073709551359)",
        b"+++ exited with 0 +++",
    )
    assert [(one.kind, one.pid, one.error) for one in found] == [
        (Kind.FORK, 7, 0),
        (Kind.EXEC, 7, 0),
        (Kind.EXIT, 7, 0),
    ]
    assert found[1].args[4] == 8, "the thread that called"
    assert not reading.unreadable


def test_child_that_is_shown_before_its_fork_gets_its_parent() -> None:
    found, _reading = read(
        b"vfork( <unfinished ...>",
        b"9 " + AT + b'openat(AT_FDCWD</app>, "a", O_RDONLY) = 3</app/a>',
        b"9 " + AT + b'execve("/bin/true", ["true"], [] <unfinished ...>',
        b"<... vfork resumed>) = 3 /* 9 in strace's PID NS */",
        b"9 " + AT + b"<... execve resumed>) = 0",
        b"9 " + AT + b"+++ killed by SIGSEGV (core dumped) +++",
    )
    assert [(one.kind, one.pid, one.ppid) for one in found] == [
        (Kind.FORK, 7, 0), (Kind.OPEN, 9, 7), (Kind.EXEC, 9, 7), (Kind.EXIT, 9, 7),
    ]  # fmt: skip
    assert found[0].child == found[1].identity
    assert found[-1].args[:3] == (0, 11, 1)


def test_child_whose_number_strace_could_not_translate_is_still_claimed() -> None:
    found, _reading = read(b"clone(flags=SIGCHLD) = 3", b"9 " + AT + b"+++ exited with 4 +++")
    assert [(one.kind, one.pid, one.ppid) for one in found] == [(Kind.FORK, 7, 0), (Kind.EXIT, 9, 7)]


def test_pid_used_again_is_another_process() -> None:
    later = b"1796033546.000000000 "
    found, _reading = read(
        b"clone(flags=SIGCHLD) = 9", b"9 " + AT + b"+++ exited with 0 +++",
        b"7 " + later + b"clone(flags=SIGCHLD) = 9", b"9 " + later + b"+++ exited with 0 +++", nested=False,
    )  # fmt: skip
    exits = [one for one in found if one.kind is Kind.EXIT]
    assert exits[0].pid == exits[1].pid
    assert exits[0].identity != exits[1].identity


def test_launcher_is_outside_the_record() -> None:
    reading = Reading([Process(7, 1)], outside=[5, 7])
    assert not list(reading.feed(b"5 " + AT + b'openat(AT_FDCWD</>, "/setup", O_RDONLY) = 3</setup>\n'))
    assert list(reading.feed(b"7 " + AT + b'openat(AT_FDCWD</>, "/a", O_RDONLY) = 3</a>\n'))


@pytest.mark.parametrize(
    "body",
    [b'openat(AT_FDCWD</>, "unclosed', b"openat() = 3", b"connect(3) = 0", b"+++ melted +++", b"frobnicate(1) = 2"],
)
def test_what_cannot_be_read_is_counted(body: bytes) -> None:
    found, reading = read(body)
    assert not found
    assert sum(reading.unreadable.values()) == 1


@given(st.binary(max_size=300))
def test_escapes_are_undone_exactly(data: bytes) -> None:
    escaped = b"".join(
        rb"\%o" % byte if not 32 <= byte < 127 and not data[at + 1 : at + 2].isdigit()
        else rb"\%03o" % byte if not 32 <= byte < 127 or byte in b'"\\<>'
        else bytes([byte])
        for at, byte in enumerate(data)
    )  # fmt: skip
    assert lines.unescape(escaped) == data


words = st.sampled_from(
    [
        b"7 ",
        b"9 ",
        AT,
        b"openat(",
        b"connect(",
        b"rename(",
        b"unlinkat(",
        b"execve(",
        b"clone(",
        b"AT_FDCWD",
        b"</a>",
        b'"x"',
        b'"',
        b", ",
        b"O_RDONLY",
        b"{sa_family=AF_INET, ",
        b"[",
        b"]",
        b")",
        b" = ",
        b"3",
        b"-1 ENOENT (No)",
        b"<... ",
        b" resumed>",
        b" <unfinished ...>",
        b"+++ exited with ",
        b" +++",
        b"+++ superseded by execve in pid 9",
        b"\\",
        b"0x",
        b"<char 1:3>",
        b"(deleted)",
        b"\n",
    ],
)


@given(st.lists(st.lists(words | st.binary(max_size=8), max_size=12).map(b"".join), max_size=8))
@settings(max_examples=200)
@example([b"7 " + AT + b'connect(3, {sa_family=AF_INET, sin_addr=inet_addr("nowhere")}, 16) = 0'])
@example([b"7 " + AT + b'openat(AT_FDCWD, "' + b"\\" * 5001])
def test_garbage_never_crashes_the_reader(raw: list[bytes]) -> None:
    reading = Reading([Process(7, 1)])
    found = [one for line in raw for one in reading.feed(line)] + list(reading.finish())
    assert len(list(decode(b"".join(map(encode, found))))) == len(found), "and what it makes is always a record"
